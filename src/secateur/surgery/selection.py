"""What happens to one dim of one tensor: the smallest value that surgery is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["Init", "Selection", "new_values"]

Init = Tensor | Callable[[Tensor], object] | None
"""Values of new positions: a tensor of their shape, a function that fills a zero tensor in place, or None for zeros."""

_STORED_AS = {1: torch.uint8, 2: torch.int16, 4: torch.float32, 8: torch.float64}
"""For dtypes that hardly any op knows (float8, complex32, uint16): one of the same width that is only copied."""

_KNOWN = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
_KNOWN |= {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass(frozen=True, eq=False)
class Selection:
    """What happens to one dim: these positions stay, and so many new ones come after them, or where `order` says.

    Args:
        dim: The dim, not negative.
        size: Its number of positions before.
        keep: Ascending kept positions, shape (number kept,), on the CPU.
        num_new: Number of new positions, appended after the kept ones.
        init: Values of the new positions in the parameter itself; None for zeros.
        order: Which of the kept and then the new positions stands at each place afterwards, shape (new size,), on the
            CPU; kept ones stay in their order. None if the new ones come last.
    """

    dim: int
    size: int
    keep: Tensor
    num_new: int = 0
    init: Init = None
    order: Tensor | None = None

    @property
    def new_size(self) -> int:
        """Number of positions after."""
        return self.keep.numel() + self.num_new

    @property
    def removed(self) -> Tensor:
        """Positions that go, ascending, shape (number removed,)."""
        gone = torch.ones(self.size, dtype=torch.bool, device="cpu")
        gone[self.keep] = False
        return gone.nonzero().squeeze(1)

    @property
    def positions(self) -> Tensor:
        """Where the positions after come from: old positions, new ones numbered from `size` on; shape (new size,)."""
        found = self.keep
        if self.num_new:
            found = torch.cat([found, torch.arange(self.size, self.size + self.num_new, device="cpu")])
        return found if self.order is None else found[self.order]

    def same_as(self, other: Selection) -> bool:
        """Whether the other does the same to the same dim (initial values aside)."""
        mine, theirs = (self.dim, self.size, self.num_new), (other.dim, other.size, other.num_new)
        if self.keep is other.keep and self.order is other.order:
            return mine == theirs
        return mine == theirs and torch.equal(self.positions, other.positions)

    def on(self, dim: int, init: Init = None) -> Selection:
        """The same positions on another dim of equal size, with initial values of its own."""
        return replace(self, dim=dim, init=init)

    def take(self, tensor: Tensor, fill: complex = 0.0) -> Tensor:
        """Kept positions of `tensor`, and new ones holding `fill`.

        Args:
            tensor: Its size along `dim` is `size`; strided or sparse COO, any dtype and device.
            fill: Value at the new positions.

        Returns:
            A tensor of its own storage, with the strides' order (memory format) of `tensor`.
        """
        if tensor.layout == torch.sparse_coo:
            return self._take_sparse(tensor)
        return self._take_dense(tensor, fill)

    def take_value(self, tensor: Tensor) -> Tensor:
        """Kept positions of the parameter's own values, and new ones as `init` says.

        Raises:
            ShapeError: `init` is a tensor of another shape than the new positions.
            InvalidInputError: `init` is a tensor whose dtype would lose its values.
        """
        if not self.num_new or self.init is None:
            return self._take_dense(tensor, 0.0)
        shape = list(tensor.shape)
        shape[self.dim] = self.num_new
        return self._take_dense(tensor, new_values(self.init, shape, tensor))

    def _take_dense(self, tensor: Tensor, new: complex | Tensor) -> Tensor:
        """Kept part and new part in one tensor, laid out in the order in which the strides of the old one fall."""
        order = _stride_order(tensor)
        dim = order.index(self.dim)
        source = tensor.detach().resolve_conj().resolve_neg().permute(order)
        plain = source if tensor.dtype in _KNOWN else source.view(_STORED_AS[tensor.itemsize])
        kept = plain.index_select(dim, self.keep.to(tensor.device)).view(tensor.dtype)
        if self.num_new:
            kept = _extended(kept, dim, self.num_new)
        result = kept.permute([order.index(d) for d in range(tensor.dim())])
        if self.num_new:
            slab = result.narrow(self.dim, self.keep.numel(), self.num_new)
            slab.copy_(new) if isinstance(new, Tensor) else slab.fill_(new)
        if self.order is not None:
            plain = kept if tensor.dtype in _KNOWN else kept.view(_STORED_AS[tensor.itemsize])
            kept = plain.index_select(dim, self.order.to(tensor.device)).view(tensor.dtype)
            result = kept.permute([order.index(d) for d in range(tensor.dim())])
        return result

    def _take_sparse(self, tensor: Tensor) -> Tensor:
        """The same for a sparse COO tensor (a sparse embedding's gradient); new positions stay unspecified, so zero."""
        kept = tensor.detach().index_select(self.dim, self.keep.to(tensor.device)).coalesce()
        shape = list(kept.shape)
        shape[self.dim] = self.new_size
        values = kept.values()
        dense_dim = self.dim - kept.sparse_dim() + 1
        if self.num_new and dense_dim > 0:
            padding = list(values.shape)
            padding[dense_dim] = self.num_new
            values = torch.cat([values, values.new_zeros(padding)], dense_dim)
        made = torch.sparse_coo_tensor(kept.indices(), values, shape, check_invariants=False)
        return made if self.order is None else made.index_select(self.dim, self.order.to(tensor.device)).coalesce()


def new_values(init: Init, shape: list[int], like: Tensor) -> Tensor:
    """Values of new positions, as a tensor of their shape with the dtype and device of `like`.

    Args:
        init: What the user asked for.
        shape: Shape of the new positions.
        like: The tensor that grows.

    Raises:
        ShapeError: `init` is, or returns, a tensor of another shape.
        InvalidInputError: `init` is, or returns, a tensor whose dtype would lose its values.
    """
    # float8 has no arithmetic, so functions see float32 instead
    narrow = like.dtype.is_floating_point and like.itemsize == 1
    slab = torch.zeros(shape, dtype=torch.float32 if narrow else like.dtype, device=like.device)
    if init is None:
        return slab.to(like.dtype)
    if not isinstance(init, Tensor) and not callable(init):
        fix = "init=torch.full(shape, value), nn.init.ones_ or None for zeros"
        raise InvalidInputError("`init` is neither a tensor nor a function.", init=repr(init)[:80], fix=fix)
    with torch.no_grad():
        values = init if isinstance(init, Tensor) else init(slab)
    if not isinstance(values, Tensor):
        values = slab
    if list(values.shape) != shape:
        raise ShapeError("`init` has another shape than the new positions.", init=tuple(values.shape), new=tuple(shape))
    if not torch.can_cast(values.dtype, like.dtype):
        raise InvalidInputError("`init` has another kind of dtype.", init=values.dtype, parameter=like.dtype)
    return values.detach().to(like.device, like.dtype)


def _extended(kept: Tensor, dim: int, num_new: int) -> Tensor:
    """A contiguous tensor that begins with `kept` along `dim`; what follows is not yet set."""
    shape = list(kept.shape)
    shape[dim] += num_new
    joined = kept.new_empty(shape)
    joined.narrow(dim, 0, kept.shape[dim]).copy_(kept)
    return joined


def _stride_order(tensor: Tensor) -> list[int]:
    """Dims from the outermost to the innermost in memory; a format that torch has a name for is kept as that."""
    dims = range(tensor.dim())
    if tensor.is_contiguous():
        return list(dims)
    for rank, named in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == rank and tensor.is_contiguous(memory_format=named):
            return [0, *range(2, rank), 1]
    strides = tensor.stride()
    return sorted(dims, key=lambda d: (-strides[d], d))
