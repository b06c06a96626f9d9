"""Which positions of a dim stay: every way of saying it, turned into ascending indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["Keep", "positions"]

Keep = Sequence[int] | slice | Tensor | NDArray[Any]
"""Kept positions: ascending indices (a range, list, 1-D tensor or array), a slice, or a bool mask (True = kept)."""


def positions(keep: Keep, size: int) -> Tensor:
    """Turn any way of saying which positions stay into ascending indices.

    Args:
        keep: Ascending indices in [0, size), a slice, or a bool mask of length `size` with True = kept.
        size: Number of positions of the dim.

    Returns:
        Ascending int64 indices, shape (number kept,), on the CPU.

    Raises:
        ShapeError: An index out of range or negative, a mask of another length, or `keep` is not 1-D.
        InvalidInputError: Nothing is kept, or indices are repeated, not ascending, or not integers.

    Example:
        >>> positions([0, 2, 3], 5), positions(slice(None, None, 2), 5)
        (tensor([0, 2, 3]), tensor([0, 2, 4]))
        >>> positions(torch.tensor([True, False, True]), 3)
        tensor([0, 2])
    """
    index = _as_tensor(keep, size)
    if index.dim() != 1:
        raise ShapeError("`keep` is not 1-D.", keep_shape=tuple(index.shape), size=size)
    if index.dtype == torch.bool:
        index = _kept_by_mask(index, size)
    if not index.numel():
        raise InvalidInputError(
            "`keep` is empty: at least one position must remain.", size=size, fix="remove the whole layer instead"
        )
    if index.is_floating_point() or index.is_complex():
        raise InvalidInputError("`keep` holds no integers.", dtype=index.dtype, fix="keep=keep.long()")
    return _checked(index.long(), size)


def _as_tensor(keep: Keep, size: int) -> Tensor:
    """What was given, as a tensor on the CPU of its own."""
    try:
        if isinstance(keep, slice):
            keep = range(size)[keep]
        if isinstance(keep, Tensor):
            return keep.detach().to("cpu", copy=True)
        return torch.tensor(keep if len(keep) else [0] * 0, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            "`keep` is not a sequence of integers.",
            keep=repr(keep)[:80],
            fix="keep=[0, 2, 3], a slice or a bool mask; sorted(keep) for a set or a generator",
        ) from error


def _kept_by_mask(mask: Tensor, size: int) -> Tensor:
    """The positions that a bool mask keeps."""
    if mask.numel() != size:
        raise ShapeError("`keep` is a mask of another length than the dim.", mask=mask.numel(), size=size)
    return mask.nonzero().squeeze(1)


def _checked(index: Tensor, size: int) -> Tensor:
    """The indices, if they are inside the dim, ascending and without repetition."""
    numbers = index.numpy()
    is_ascending = bool((numbers[1:] > numbers[:-1]).all())
    low, high = (int(numbers[0]), int(numbers[-1])) if is_ascending else (int(numbers.min()), int(numbers.max()))
    if low < 0 or high >= size:
        raise ShapeError(
            "`keep` has an index outside the dim.",
            size=size,
            keep=f"{index.numel()} indices, min {low}, max {high}",
            fix=f"`keep` lists kept positions in [0, {size}), none counted from the end; a bool mask works too",
        )
    if not is_ascending:
        raise InvalidInputError(
            "`keep` is not strictly ascending: it says which positions stay, not a new order.",
            keep=f"{index[:8].tolist()}{'…' if index.numel() > 8 else ''}",
            fix="keep=torch.as_tensor(keep).unique()",
        )
    return index
