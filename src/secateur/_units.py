"""Units, and the exact choice of the lowest of them.

A *unit* is the smallest thing that a pattern can remove: an entry, a row, a channel. What is removed is always "the k
lowest", and k is exact: of equal scores the one that comes first goes first. A threshold alone cannot do that, and a
sort takes a hundred times longer than one pass, so the k-th lowest is found by radix: floats are turned into integers
of the same order, a histogram of their top 16 bits tells the bin that holds the k-th, the next 16 bits are counted
within that bin only, and so on. The histograms of many tensors add up, so the same search serves a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["Units", "check_scores", "lowest", "lowest_counts"]

_DIGIT_BITS = 16
_NUM_DIGITS = 1 << _DIGIT_BITS
_HALF = _NUM_DIGITS >> 1


@dataclass(frozen=True, eq=False)
class Units:
    """The units of one tensor: what an allocation may look at.

    Args:
        scores: 1-D, real floating point, one score a unit in the order of their positions; higher = kept. Units that
            are masked already have ``-inf``, so that they are the first to go.
        shape: Shape of the tensor that the units make up.
        size: Entries in one unit.

    Raises:
        ShapeError: `scores` is not 1-D, or does not have one score for each `size` entries of `shape`.
        InvalidInputError: `scores` are not real floating-point numbers.
    """

    scores: Tensor
    shape: torch.Size
    size: int = 1

    def __post_init__(self) -> None:
        """Check that the three parts describe the same tensor."""
        if not self.scores.is_floating_point():
            raise InvalidInputError("unit scores must be real floating-point numbers.", dtype=self.scores.dtype)
        if self.scores.dim() != 1 or self.scores.numel() * self.size != self.shape.numel():
            raise ShapeError(
                "unit scores must be 1-D, one for each unit of the tensor.",
                scores=tuple(self.scores.shape),
                shape=tuple(self.shape),
                unit_size=self.size,
            )

    @property
    def num_units(self) -> int:
        """How many units the tensor has."""
        return self.scores.numel()


def check_scores(scores: Mapping[str, Tensor]) -> None:
    """Refuse scores that have no order.

    Args:
        scores: Scores of any shape by dotted name.

    Raises:
        InvalidInputError: A tensor has NaN scores; infinite ones are fine.
    """
    for name, values in scores.items():
        # amax propagates NaN and takes a tenth of the time of isnan().any()
        if values.numel() and bool(values.amax().isnan()):
            raise InvalidInputError(
                f"cannot rank the scores of {name!r}: some are NaN.",
                nan=f"{int(values.isnan().count_nonzero())} of {values.numel()}",
                fix="look for inf or NaN in the tensors that the score reads (weights, gradients)",
            )


def lowest(scores: Tensor, k: int, *, name: str = "scores") -> Tensor:
    """Choose exactly the `k` lowest scores; of equal scores the first goes first.

    Args:
        scores: 1-D, floating point, on any device; ``-inf`` and ``inf`` are allowed.
        k: How many are removed, in ``[0, len(scores)]``.
        name: What the scores belong to, for the error message.

    Returns:
        Bool tensor like `scores`, False at the `k` removed positions (True = kept).

    Raises:
        InvalidInputError: A score is NaN, or `k` is out of range.

    Example:
        >>> lowest(torch.tensor([0.5, 0.1, 0.9, 0.1, 0.1]), 2)
        tensor([ True, False,  True, False,  True])
    """
    check_scores({name: scores})
    if not 0 <= k <= scores.numel():
        raise InvalidInputError(f"cannot remove {k} units of {name!r}.", units=scores.numel())
    if k in (0, scores.numel()):
        return torch.full_like(scores, k == 0, dtype=torch.bool, requires_grad=False)
    keys = _ordered(scores, _common_dtype([scores]))
    cut = _cut([keys], k)
    if cut.num_taken == cut.num_tied:
        return keys > cut.key
    kept = keys >= cut.key
    last_taken = int((keys == cut.key).nonzero()[cut.num_taken - 1])
    kept[: last_taken + 1] = keys[: last_taken + 1] > cut.key
    return kept


def lowest_counts(scores: Sequence[Tensor], k: int) -> list[int]:
    """Count how many of the `k` lowest scores of all tensors together fall on each tensor.

    Args:
        scores: 1-D floating-point tensors without NaN; dtypes and devices may differ. Equal scores go in the order of
            the tensors, then of the positions, so ``lowest(scores[i], counts[i])`` are the ones meant.
        k: How many are removed in total, in ``[0, total]``.

    Returns:
        One count a tensor; their sum is `k`.

    Example:
        >>> lowest_counts([torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0, 2.0])], 2)
        [1, 1]
    """
    if k == 0:
        return [0] * len(scores)
    dtype = _common_dtype(scores)
    keys = [_ordered(values, dtype) for values in scores]
    cut = _cut(keys, k)
    left, counts = cut.num_taken, []
    for values in keys:
        tied = min(left, int((values == cut.key).count_nonzero()))
        counts.append(int((values < cut.key).count_nonzero()) + tied)
        left -= tied
    return counts


class _Cut(NamedTuple):
    """Where the k lowest end: all keys below `key` go, and `num_taken` of the `num_tied` equal ones."""

    key: int
    num_taken: int
    num_tied: int


def _common_dtype(scores: Sequence[Tensor]) -> torch.dtype:
    """A dtype with integer keys in which all the scores are exact."""
    return torch.float64 if any(values.dtype == torch.float64 for values in scores) else torch.float32


def _ordered(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn floats into signed integers of the same order: negative floats have the order of their bits reversed."""
    # + 0.0 turns -0.0 into 0.0: they are equal, but their bits are not
    bits = (scores.detach().to(dtype) + 0.0).view(torch.int64 if dtype == torch.float64 else torch.int32)
    sign = bits >> (8 * bits.element_size() - 1)
    return bits.bitwise_xor_(sign.bitwise_and_(torch.iinfo(bits.dtype).max))


def _cut(keys: Sequence[Tensor], k: int) -> _Cut:
    """Find the k-th lowest key (1 <= k <= total) digit by digit, from the top."""
    top = 8 * keys[0].element_size() - _DIGIT_BITS
    threshold = 0
    for shift in range(top, -1, -_DIGIT_BITS):
        histogram = torch.zeros(_NUM_DIGITS, dtype=torch.int64)
        for values in keys:
            histogram += _digit_counts(values, shift, signed=shift == top)
        reached = histogram.cumsum(0)
        digit = int(torch.searchsorted(reached, k))
        k -= int(reached[digit] - histogram[digit])
        threshold |= (digit - _HALF if shift == top else digit) << shift
        if shift:
            keys = [values[(values >> shift) == (threshold >> shift)] for values in keys]
    return _Cut(threshold, k, int(histogram[digit]))


def _digit_counts(keys: Tensor, shift: int, *, signed: bool) -> Tensor:
    """Histogram of the 16-bit digit at `shift`; the top digit carries the sign and is moved up to start at 0."""
    digits = keys >> shift
    digits = digits.add_(_HALF) if signed else digits.bitwise_and_(_NUM_DIGITS - 1)
    return torch.bincount(digits, minlength=_NUM_DIGITS).cpu()
