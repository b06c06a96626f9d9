"""How one tensor came from another: the same memory, a copy, a masked copy, or a cut, and then at which positions.

Weights are random enough for this: almost every value of a trained tensor occurs once in it, so a value tells where it
came from. Tensors of equal values (fresh biases, norms) tell nothing, and nothing is concluded from them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from secateur.surgery import Selection

__all__ = ["Kind", "Origin", "derive", "kept_in_view", "relation"]

Kind = Literal["same memory", "copied", "masked", "scaled", "cut", "new values"]
"""What was done to the old tensor to make the new one."""

_FEWEST = 2
"""So many different values must agree before they count as evidence."""


@dataclass(frozen=True, eq=False)
class Origin:
    """How a new tensor relates to an old one.

    Args:
        kind: What was done.
        selections: Which positions of the old one it has, for the dims that were cut; None where that is not known.
    """

    kind: Kind
    selections: tuple[Selection, ...] | None = ()


def derive(new: Tensor, old: Tensor) -> Origin | None:
    """Find out whether `new` was made from `old`, from memory and values alone.

    Args:
        new: Any tensor.
        old: The tensor that it may have been made from; in no dim smaller.

    Returns:
        How, or None where there is no evidence. A few equal values (a bias of zeros) are no evidence.
    """
    if not _comparable(new, old):
        return None
    if _same_memory(new, old):
        if new.shape == old.shape:
            return Origin("same memory")
        view = kept_in_view(new, old.shape, old.stride(), int(old.storage_offset()))
        return Origin("cut", view) if view is not None else None
    new, old = new.detach(), old.detach().to(new.dtype).to(new.device)
    if new.shape == old.shape:
        kind = relation(new, old)
        if kind != "new values" and _tells(new[new != 0] if kind == "masked" else new):
            return Origin(kind)
    selections = _kept_by_value(new, old)
    return Origin("cut", selections) if selections else None


def relation(new: Tensor, old: Tensor) -> Kind:
    """What the values say about two tensors of one shape that are known to belong together."""
    if new.shape != old.shape:
        return "cut" if all(n <= o for n, o in zip(new.shape, old.shape, strict=False)) else "new values"
    if new.is_meta or old.is_meta:
        return "new values"
    new, old = new.detach(), old.detach().to(new.dtype).to(new.device)
    same = new == old
    if bool(same.all()):
        return "copied"
    if bool(new.any()) and bool((same | (new == 0)).all()):
        return "masked"
    return "scaled" if _is_multiple(new, old) else "new values"


def _is_multiple(new: Tensor, old: Tensor) -> bool:
    """Whether one is a multiple of the other, but for rounding."""
    if new.numel() <= _FEWEST or not new.is_floating_point():
        return False
    largest = old.abs().argmax()
    factor = new.flatten()[largest] / old.flatten()[largest]
    rounding = 4 * torch.finfo(new.dtype).eps
    return bool(factor != 0) and torch.allclose(new, factor * old, rtol=rounding, atol=0.0)


def _comparable(new: Tensor, old: Tensor) -> bool:
    """Whether `new` could be all or part of `old`, and both have values to look at."""
    plain = all(t.layout == torch.strided and not t.is_meta and not t.is_quantized for t in (new, old))
    fits = new.dim() == old.dim() and all(n <= o for n, o in zip(new.shape, old.shape, strict=True))
    return plain and fits and new.numel() > 0 and new.is_complex() == old.is_complex()


def _same_memory(new: Tensor, old: Tensor) -> bool:
    """Whether both lie in one storage."""
    pointer = new.untyped_storage().data_ptr()
    return new.device == old.device and pointer != 0 and pointer == old.untyped_storage().data_ptr()


def _tells(values: Tensor) -> bool:
    """Whether the values differ among themselves, so that it is no accident if others agree with them."""
    return values.numel() >= _FEWEST and bool((values != values.flatten()[0]).any())


def kept_in_view(
    view: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> tuple[Selection, ...] | None:
    """Which positions of a tensor a view of it shows, from the view's geometry alone.

    ``w.data = w.data[:, :90]`` leaves a view behind that lies in the old tensor's memory and so tells what was kept.

    Args:
        view: The view.
        shape: Shape of the whole tensor.
        strides: Its strides, in elements.
        offset: Where it begins in the storage, in elements.

    Returns:
        A selection for each dim that was cut, or None if `view` is no slice of such a tensor.

    Example:
        >>> whole = torch.zeros(4, 6)
        >>> [(s.dim, s.keep.tolist()) for s in kept_in_view(whole[:, 1:6:2], whole.shape, whole.stride())]
        [(1, [1, 3, 5])]
    """
    if view.layout != torch.strided or view.is_meta or view.dim() != len(shape):
        return None
    end = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    rest = int(view.storage_offset()) - offset
    if rest < 0 or view.untyped_storage().nbytes() < end * view.element_size():
        return None
    starts = [0] * view.dim()
    for dim in sorted(range(view.dim()), key=lambda d: -strides[d]):
        if strides[dim] > 0 and shape[dim] > 1:
            starts[dim], rest = divmod(rest, strides[dim])
    kept = [
        _positions(start, size, view.stride(dim), strides[dim])
        for dim, (start, size) in enumerate(zip(starts, view.shape, strict=True))
    ]
    if rest or any(k is None or int(k[-1]) >= size for k, size in zip(kept, shape, strict=True)):
        return None
    return _selections([k for k in kept if k is not None], shape)


def _positions(start: int, size: int, stride: int, whole_stride: int) -> Tensor | None:
    """Kept positions of one dim, None if the strides do not fit or nothing is kept."""
    if size == 0 or (size > 1 and (whole_stride == 0 or stride % whole_stride)):
        return None
    step = stride // whole_stride if size > 1 else 1
    return start + step * torch.arange(size) if step > 0 else None


def _selections(kept: Sequence[Tensor], shape: Sequence[int]) -> tuple[Selection, ...]:
    """Selections for the dims where something is missing or moved."""
    return tuple(
        Selection(dim, size, keep)
        for dim, (keep, size) in enumerate(zip(kept, shape, strict=True))
        if not torch.equal(keep, torch.arange(size))
    )


def _kept_by_value(new: Tensor, old: Tensor) -> tuple[Selection, ...] | None:
    """Which positions of `old` make up `new`, found by the values that occur in `old` only once."""
    if new.is_complex() or new.dim() == 0 or not _sampled(new, old):
        return None
    values, order = old.flatten().sort()
    unique = torch.ones_like(values, dtype=torch.bool)
    unique[1:] &= values[1:] != values[:-1]
    unique[:-1] &= values[:-1] != values[1:]
    at = torch.searchsorted(values, new.flatten().contiguous()).clamp(max=values.numel() - 1)
    hit = ((values[at] == new.flatten()) & unique[at]).view(new.shape)
    if int(hit.count_nonzero()) < min(_FEWEST, new.numel()):
        return None
    coordinates = torch.unravel_index(order[at], old.shape)
    kept = [_agreed(c.view(new.shape), hit, dim, old.shape[dim]) for dim, c in enumerate(coordinates)]
    found = [k for k in kept if k is not None]
    if len(found) < len(kept):
        return None
    part = old
    for dim, keep in enumerate(found):
        part = part.index_select(dim, keep)
    agrees = bool(((part == new) | (new == 0)).all())
    return _selections([k.cpu() for k in found], old.shape) if agrees else None


def _sampled(new: Tensor, old: Tensor) -> bool:
    """Whether a few of the values occur in `old` at all; this most often settles it before anything is sorted."""
    values = new[new != 0]
    sample = values[:: max(1, values.numel() // 4)]
    return sample.numel() > 0 and all(bool((old == value).any()) for value in sample)


def _agreed(coordinate: Tensor, hit: Tensor, dim: int, size: int) -> Tensor | None:
    """The old position of each new one along `dim`, from one recognised value in each slab."""
    known = hit.movedim(dim, 0).reshape(hit.shape[dim], -1)
    position = coordinate.movedim(dim, 0).reshape(hit.shape[dim], -1)
    found = position.gather(1, known.int().argmax(1, keepdim=True)).squeeze(1)
    recognised = known.any(1)
    if not bool(recognised.all()):
        identity = torch.arange(hit.shape[dim], device=hit.device)
        if hit.shape[dim] != size or not torch.equal(found[recognised], identity[recognised]):
            return None
        return identity
    return found if found.unique().numel() == found.numel() else None
