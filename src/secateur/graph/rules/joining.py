"""Tensors made of several, and parts of tensors: cat, stack, split, slice, select, pad, roll, flip."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.capture import Call
from secateur.graph.labels import Dim, Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.cat")
def cat(call: Call) -> list[Dims]:
    """Lay tensors one after the other along a dim; all other dims are equal."""
    tensors = [t for t in call.args[0] if t.dim() > 1 or t.numel()]
    dim = call.arg(1, "dim", 0) % call.out.dim()
    dims = [list(call.dims(t)) for t in tensors]
    for d in range(call.out.dim()):
        if d != dim:
            for other in dims[1:]:
                call.equal(dims[0][d], other[d])
    result = dims[0]
    result[dim] = call.labels.joined([own[dim] for own in dims])
    return [tuple(result)]


@rule("aten.stack")
def stack(call: Call) -> list[Dims]:
    """Lay tensors along a new dim, which cannot change; all other dims are equal."""
    tensors = call.args[0]
    dims = call.dims(tensors[0])
    for tensor in tensors[1:]:
        for mine, theirs in zip(dims, call.dims(tensor), strict=True):
            call.equal(mine, theirs)
    at = call.arg(1, "dim", 0) % call.out.dim()
    return [(*dims[:at], call.labels.fixed_dim(len(tensors)), *dims[at:])]


@rule("aten.split", "aten.unsafe_split", "aten.split_with_sizes", "aten.chunk", "aten.unsafe_chunk")
def split(call: Call) -> list[Dims]:
    """Cut a dim into parts. Equal parts stay equal: position j goes in all of them together."""
    source = call.args[0]
    dim = call.arg(2, "dim", 0) % source.dim()
    dims = call.dims(source)
    sizes = [part.shape[dim] for part in call.out]
    return [_with(dims, dim, part) for part in _cut(call, dims[dim], sizes)]


def _cut(call: Call, whole: Dim, sizes: list[int]) -> list[Dim]:
    """Consecutive parts of a dim."""
    labels = call.labels
    if len(set(sizes)) == 1 and len(sizes) > 1:
        views = labels.reshape((whole,), (len(sizes), sizes[0]))
        if views is not None:
            call.block(views[0], f"{call.name} makes a part of it")
            return [views[1]] * len(sizes)
    call.block(whole, f"{call.name} cuts it at sizes that are written in the code")
    return [labels.fixed_dim(size) for size in sizes]


def _with(dims: Dims, at: int, dim: Dim) -> Dims:
    """The dims, with one exchanged."""
    return (*dims[:at], dim, *dims[at + 1 :])


@rule("aten.unbind")
def unbind(call: Call) -> list[Dims]:
    """Take every position of a dim by itself, so that none can go."""
    source = call.args[0]
    dim = call.arg(1, "dim", 0) % source.dim()
    dims = call.dims(source)
    call.block(dims[dim], "unbind takes its positions one by one")
    return [(*dims[:dim], *dims[dim + 1 :])] * len(call.out)


@rule("aten.select")
def select(call: Call) -> list[Dims]:
    """Take one position by its number, which others must not shift."""
    source, dim = call.args[0], call.args[1] % call.args[0].dim()
    dims = call.dims(source)
    call.block(dims[dim], "one position of it is taken by number")
    return [(*dims[:dim], *dims[dim + 1 :])]


@rule("aten.slice")
def slice_(call: Call) -> list[Dims]:
    """Take a range of positions; boundaries written in the code keep all of them in place."""
    source = call.args[0]
    dim = call.arg(1, "dim", 0) % source.dim()
    dims = call.dims(source)
    size = source.shape[dim]
    if call.out.shape[dim] == size:
        return [dims]
    call.block(dims[dim], "a part of it is cut out at boundaries that are written in the code")
    return [_with(dims, dim, call.labels.fixed_dim(call.out.shape[dim]))]


@rule("aten.constant_pad_nd")
def pad(call: Call) -> list[Dims]:
    """Put new positions before and after; they stay."""
    source, widths = call.args[0], call.args[1]
    dims = list(call.dims(source))
    labels = call.labels
    for k in range(len(widths) // 2):
        before, after = widths[2 * k], widths[2 * k + 1]
        if (before, after) == (0, 0):
            continue
        d = source.dim() - 1 - k
        if before < 0 or after < 0:
            call.block(dims[d], "padding by a negative width cuts it")
            dims[d] = labels.fixed_dim(call.out.shape[d])
        else:
            ends = [labels.fixed_dim(before)] if before else []
            dims[d] = labels.joined([*ends, dims[d], *([labels.fixed_dim(after)] if after else [])])
    return [tuple(dims)]


@rule("aten.roll", "aten.flip")
def reorder(call: Call) -> list[Dims]:
    """Move positions by fixed distances, so that none can go from the dims that move."""
    source: Tensor = call.args[0]
    moved = call.arg(2, "dims", ()) if call.name == "aten.roll" else call.args[1]
    dims = call.dims(source)
    for d in moved or range(source.dim()):
        call.block(dims[d], f"{call.name} moves its positions")
    return [dims]
