"""Which positions of a dim stay, and what is put at new ones: the smallest value that surgery is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["Init", "Keep", "Selection", "positions"]

Keep = Sequence[int] | slice | Tensor
"""Kept positions: indices (a range, list or 1-D integer tensor, ascending), a slice, or a bool mask (True = kept)."""

Init = Tensor | Callable[[Tensor], object] | None
"""Values of new positions: a tensor of their shape, a function that fills an empty one in place, or None for zeros."""


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
    if isinstance(keep, slice):
        keep = range(size)[keep]
    try:
        index = keep.detach().cpu() if isinstance(keep, Tensor) else torch.tensor(keep if len(keep) else [0] * 0)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            "`keep` is not a sequence of integers.", keep=repr(keep)[:80], fix="keep=[0, 2, 3], a slice or a bool mask"
        ) from error
    if index.dim() != 1:
        raise ShapeError("`keep` is not 1-D.", keep_shape=tuple(index.shape), size=size)
    if index.dtype == torch.bool:
        if index.numel() != size:
            raise ShapeError("`keep` is a mask of another length than the dim.", mask=index.numel(), size=size)
        index = index.nonzero().squeeze(1)
    if not index.numel():
        raise InvalidInputError(
            "`keep` is empty: at least one position must remain.", size=size, fix="remove the whole layer instead"
        )
    if index.is_floating_point() or index.is_complex():
        raise InvalidInputError("`keep` holds no integers.", dtype=index.dtype, fix="keep=keep.long()")
    return _checked(index.long(), size)


def _checked(index: Tensor, size: int) -> Tensor:
    """The indices, if they are inside the dim, ascending and without repetition."""
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= size:
        raise ShapeError(
            "`keep` has an index outside the dim.",
            size=size,
            keep=f"{index.numel()} indices, min {low}, max {high}",
            fix=f"`keep` lists kept positions in [0, {size}); a bool mask works too",
        )
    if any(b <= a for a, b in pairwise(index.tolist())):
        raise InvalidInputError(
            "`keep` is not strictly ascending: it says which positions stay, not a new order.",
            keep=f"{index[:8].tolist()}{'…' if index.numel() > 8 else ''}",
            fix="keep=sorted(set(keep))",
        )
    return index


@dataclass(frozen=True, eq=False)
class Selection:
    """What happens to one dim: these positions stay, and so many new ones come after them.

    Args:
        dim: The dim, not negative.
        size: Its number of positions before.
        keep: Ascending kept positions, shape (number kept,), on the CPU.
        num_new: Number of new positions, appended after the kept ones.
        init: Values of the new positions in the parameter itself; None for zeros.
    """

    dim: int
    size: int
    keep: Tensor
    num_new: int = 0
    init: Init = None

    @property
    def new_size(self) -> int:
        """Number of positions after."""
        return self.keep.numel() + self.num_new

    @property
    def removed(self) -> Tensor:
        """Positions that go, ascending, shape (number removed,)."""
        gone = torch.ones(self.size, dtype=torch.bool)
        gone[self.keep] = False
        return gone.nonzero().squeeze(1)

    def same_as(self, other: Selection) -> bool:
        """Whether the other does the same to the same dim (initial values aside)."""
        mine, theirs = ((s.dim, s.size, s.num_new) for s in (self, other))
        return mine == theirs and torch.equal(self.keep, other.keep)

    def on(self, dim: int) -> Selection:
        """The same selection on another dim of equal size."""
        return Selection(dim, self.size, self.keep, self.num_new, self.init)

    def take(self, tensor: Tensor, fill: float = 0.0) -> Tensor:
        """Kept positions of `tensor`, then new ones holding `fill`.

        Args:
            tensor: Its size along `dim` is `size`; strided or sparse COO, any dtype and device.
            fill: Value at the new positions.

        Returns:
            A tensor of its own storage, with the strides' order (memory format) of `tensor`.
        """
        if tensor.layout == torch.sparse_coo:
            return self._take_sparse(tensor)
        return self._join(tensor, lambda slab: slab.fill_(fill))

    def take_value(self, tensor: Tensor) -> Tensor:
        """Kept positions of the parameter's own values, then new ones as `init` says.

        Raises:
            ShapeError: `init` is a tensor of another shape than the new positions.
            InvalidInputError: `init` is a tensor whose dtype would lose its values.
        """
        return self._join(tensor, self._fill_new)

    def _fill_new(self, slab: Tensor) -> object:
        """Fill the slab of new positions in place."""
        if self.init is None:
            return slab.zero_()
        if not isinstance(self.init, Tensor):
            slab.zero_()
            return self.init(slab)
        if self.init.shape != slab.shape:
            raise ShapeError(
                "`init` has another shape than the new positions.", init=tuple(self.init.shape), new=tuple(slab.shape)
            )
        if not torch.can_cast(self.init.dtype, slab.dtype):
            raise InvalidInputError("`init` has another kind of dtype.", init=self.init.dtype, parameter=slab.dtype)
        return slab.copy_(self.init.detach())

    def _join(self, tensor: Tensor, fill: Callable[[Tensor], object]) -> Tensor:
        """Kept part and filled new part in one new tensor that keeps the order of strides."""
        order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
        dim = order.index(self.dim)
        source = tensor.detach().permute(order)
        shape = list(source.shape)
        shape[dim] = self.new_size
        joined = source.new_empty(shape)
        kept = self.keep.numel()
        view, joined_view = _bytes(source), _bytes(joined)
        joined_view.narrow(dim, 0, kept).copy_(view.index_select(dim, self.keep.to(tensor.device)))
        result = joined.permute([order.index(d) for d in range(tensor.dim())])
        if self.num_new:
            fill(result.narrow(self.dim, kept, self.num_new))
        return result

    def _take_sparse(self, tensor: Tensor) -> Tensor:
        """The same for a sparse COO tensor (a sparse embedding's gradient); new positions stay unspecified, so zero."""
        kept = tensor.detach().index_select(self.dim, self.keep.to(tensor.device)).coalesce()
        shape = list(kept.shape)
        shape[self.dim] = self.new_size
        return torch.sparse_coo_tensor(kept.indices(), kept.values(), shape, check_invariants=False)


def _bytes(tensor: Tensor) -> Tensor:
    """The tensor, seen as bytes where its dtype is one that few ops know (float8)."""
    known = not tensor.is_floating_point() or tensor.itemsize > 1
    return tensor if known else tensor.view(torch.uint8)
