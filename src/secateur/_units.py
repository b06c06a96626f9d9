"""Units, and the exact choice of the lowest of them.

A *unit* is the smallest thing that a pattern can remove: an entry, a block, a row, a channel. What is removed is always
"the k lowest", and k is exact: of equal scores the one that comes first goes first. A threshold alone cannot do that,
and a sort takes a hundred times longer than a pass, so the k-th lowest is found by partition: a small random sample
tells two values that most likely have it between them, one pass counts what is below and takes out what is between, and
the same is done with the little that is left. The counts of many tensors add up, so one search serves a whole model.
Here it is in torch, for scores on any device and of any width; `secateur._native.selecting` has it in C.

References:
    Floyd, Rivest 1975, "Expected time bounds for selection". Different here: both values come from one sample, and
    nothing is moved about, so that several tensors can be searched together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import ceil, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError
from secateur._native.selecting import chosen, counts_of_lowest

__all__ = ["Units", "check_scores", "lowest", "lowest_counts"]

_FEW = 1 << 11
"""Scores that are sorted without further ado."""

_LARGEST_SAMPLE = 1 << 15

_PIECE = 1 << 18
"""Scores that a CPU looks at together, so that what it makes of them stays in its caches."""


@dataclass(frozen=True, eq=False)
class Units:
    """The units of one tensor: what an allocation may look at.

    Args:
        scores: 1-D, real floating point, one score a unit in the order of their positions; higher = kept. Units that
            are masked already have ``-inf``, so that they are the first to go.
        shape: Shape of the tensor that the units make up.
        size: Entries in one unit; units at an edge may have fewer.

    Raises:
        ShapeError: `scores` is not 1-D, or units of this size do not make up `shape`.
        InvalidInputError: `scores` are not real floating-point numbers.
    """

    scores: Tensor
    shape: torch.Size
    size: int = 1

    def __post_init__(self) -> None:
        """Check that the three parts describe the same tensor."""
        if not self.scores.is_floating_point():
            raise InvalidInputError("unit scores must be real floating-point numbers.", dtype=self.scores.dtype)
        most = self.scores.numel() * self.size
        least = self.scores.numel() if self.size else 0
        if self.scores.dim() != 1 or not least <= self.shape.numel() <= most:
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
    known = chosen(scores, k, rest=True)
    if known is not None:
        return known
    check_scores({name: scores})
    scores = scores.detach()
    if not 0 <= k <= scores.numel():
        raise InvalidInputError(f"cannot remove {k} units of {name!r}.", units=scores.numel())
    if k in (0, scores.numel()):
        return torch.full_like(scores, k == 0, dtype=torch.bool)
    cut = _cut([scores], k)
    if cut.num_taken == cut.equal[0]:
        return scores > cut.score
    kept = scores >= cut.score
    last_taken = int((scores == cut.score).nonzero()[cut.num_taken - 1])
    kept[: last_taken + 1] = scores[: last_taken + 1] > cut.score
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
    known = counts_of_lowest(scores, k)
    if known is not None:
        return known
    if k == 0:
        return [0] * len(scores)
    cut = _cut([values.detach() for values in scores], k)
    left, counts = cut.num_taken, []
    for lower, equal in zip(cut.lower, cut.equal, strict=True):
        counts.append(lower + min(left, equal))
        left -= min(left, equal)
    return counts


class _Cut(NamedTuple):
    """Where the k lowest end: all below `score` go, and the first `num_taken` of those equal to it.

    `lower` and `equal` are the numbers of such scores in each tensor.
    """

    score: float
    num_taken: int
    lower: list[int]
    equal: list[int]


def _cut(scores: Sequence[Tensor], k: int) -> _Cut:
    """Find the k-th lowest score of all tensors together (1 <= k <= total)."""
    dtype = reduce(torch.promote_types, (values.dtype for values in scores))
    generator = torch.Generator().manual_seed(0)
    left, lower = list(scores), [0] * len(scores)
    while True:
        low, high = _bounds(left, k - sum(lower), dtype, generator)
        parts = [_parted(values, low, high, dtype) for values in left]
        ends = list(accumulate(sum(numbers) for numbers in zip(*(part.sizes for part in parts), strict=True)))
        section = bisect_left(ends, k - sum(lower))
        lower = [number + sum(part.sizes[:section]) for number, part in zip(lower, parts, strict=True)]
        if section in (_AT_LOW, _AT_HIGH):
            score = low if section == _AT_LOW else high
            return _Cut(score, k - sum(lower), lower, [part.sizes[section] for part in parts])
        if section == _BETWEEN:
            left = [part.between for part in parts]
        else:  # the sample has misled
            left = [values[values < low if section == 0 else values > high] for values in left]


_AT_LOW, _BETWEEN, _AT_HIGH = 1, 2, 3


class _Parted(NamedTuple):
    """One tensor's scores, parted by two values.

    `sizes` are the numbers of those below the low one, equal to it, `between` them, equal to the high one, and above.
    """

    sizes: tuple[int, int, int, int, int]
    between: Tensor


def _parted(values: Tensor, low: float, high: float, dtype: torch.dtype) -> _Parted:
    """Count the scores on either side of two values, and take out those between them."""
    below, inside = 0, []
    for piece in values.split(_PIECE if values.device.type == "cpu" else max(values.numel(), 1)):
        piece = piece.to(dtype)
        reached = piece >= low
        below += piece.numel() - int(reached.count_nonzero())
        inside.append(piece[reached.logical_and_(piece <= high)])
    middle = torch.cat(inside)
    between = middle[(middle > low).logical_and_(middle < high)]
    at_low = int((middle == low).count_nonzero())
    at_high = middle.numel() - at_low - between.numel()
    return _Parted((below, at_low, between.numel(), at_high, values.numel() - below - middle.numel()), between)


def _bounds(scores: Sequence[Tensor], k: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[float, float]:
    """Two scores that most likely have the k-th lowest of all between them; twice that score itself if they are few."""
    total = sum(values.numel() for values in scores)
    if total <= _FEW:
        found = float(torch.cat([values.to("cpu", dtype) for values in scores]).sort().values[k - 1])
        return found, found
    share = min(_LARGEST_SAMPLE, total ** (2 / 3)) / total
    sample = torch.cat([_sample(values, share, generator).to("cpu", dtype) for values in scores]).sort().values
    # four standard deviations of the rank that the k-th has among the sample, at most
    middle, margin = k / total * len(sample), 2 * sqrt(len(sample))
    low, high = max(int(middle - margin), 0), min(ceil(middle + margin), len(sample) - 1)
    return float(sample[low]), float(sample[high])


def _sample(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A share of the scores, chosen at random, the same ones each time."""
    if values.numel() == 0:
        return values
    positions = torch.randint(values.numel(), (ceil(share * values.numel()),), generator=generator)
    return values[positions.to(values.device)]
