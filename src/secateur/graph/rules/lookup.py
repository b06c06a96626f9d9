"""Positions taken by numbers that are data: embedding, indexing, gather, scatter.

The dim whose positions are numbered must stay, since the numbers are not rewritten. The dims of the numbers themselves
are dims like any other. Where values decide how many there are (a boolean mask), the result is *counted*.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.rules._numbers import aligned, block_all
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast

__all__: list[str] = []

_BY_NUMBER = "its positions are looked up by number"
_OVERWRITES = "its positions say what is overwritten"


@rule("aten.embedding")
def embedding(call: Call) -> list[Dims]:
    """``weight[indices]``: rows are looked up by number, columns pass on."""
    rows, width = call.dims(call.args[0])
    call.block(rows, _BY_NUMBER)
    return [(*call.dims(call.args[1]), width)]


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(call: Call) -> list[Dims]:
    """Sums, means or maxima of rows -> (bag, width) and three tables of numbers."""
    rows, width = call.dims(call.args[0])
    call.block(rows, _BY_NUMBER)
    per_sample = call.arg("per_sample_weights")
    if isinstance(per_sample, Tensor):
        call.equal(call.dims(call.args[1])[0], call.dims(per_sample)[0])
    for dim in (*call.dims(call.args[1]), *call.dims(call.args[2])):
        call.block(dim, "bags are cut out of it by number")
    first, *others = call.outputs
    bags = call.labels.fixed_dim(first.shape[0])
    return [(bags, width), *((bags, width) if out.shape == first.shape else call.labels.fixed_dims(out.shape)
                             for out in others)]  # fmt: skip


@rule("aten.index", "aten._unsafe_index")
def index(call: Call) -> list[Dims]:
    """``source[indices]``."""
    return [_taken(call, call.dims(call.args[0]), call.arg("indices"), like=call.out)]


@rule("aten.index_put", "aten.index_put_", "aten._unsafe_index_put", "aten._index_put_impl_")
def index_put(call: Call) -> list[Dims]:
    """``source[indices] = values``, the values broadcast.

    One value where a mask says so (``x[x < 0] = 0``) goes position by position, as ``masked_fill`` does.
    """
    dims, values = call.dims(call.args[0]), call.arg("values")
    chosen = [(at, number) for at, number in enumerate(call.arg("indices")) if number is not None]
    if values.numel() == 1 and len(chosen) == 1 and _is_mask(chosen[0][1]):
        ((at, mask),) = chosen
        for mine, theirs in zip(dims[at : at + mask.dim()], call.dims(mask), strict=True):
            call.equal(mine, theirs)
        return [dims]
    taken = _taken(call, dims, call.arg("indices"), like=values)
    shape = tuple(size_of(dim) for dim in taken)
    own = call.dims(values)[max(0, values.dim() - len(shape)) :]  # leading dims of size 1 may be too many
    own_shape = tuple(size_of(dim) for dim in own)
    broadcast(call.labels, shape, [(shape, taken), (own_shape, own)])
    if not (call.arg("accumulate") and own_shape == shape):
        for number in call.arg("indices"):
            block_all(call, () if number is None else call.dims(number), _OVERWRITES)
    return [dims]


def _taken(call: Call, source: Dims, indices: Sequence[Tensor | None], like: Tensor) -> Dims:
    """Dims of ``source[indices]``, aligned from the right with `like`, which tells how many positions masks choose.

    Dims of the numbers come where the first of them stands; if others pass between them, in front.
    """
    passed: list[Dim] = []
    places: list[int] = []
    numbers: list[Tensor] = []
    at = 0
    for index in indices:
        here = source[at : at + (index.dim() if index is not None and _is_mask(index) else 1)]
        if index is None:
            passed += here
        else:
            block_all(call, here, _BY_NUMBER)
            places += range(at, at + len(here))
            numbers.append(index)
        at += len(here)
    passed += source[at:]
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    behind = len(passed) - first
    count = like.shape[-1 - behind] if like.dim() > behind else 1
    operands = [_number_dims(call, number, count) for number in numbers]
    shape = tuple(torch.broadcast_shapes(*(size for size, _ in operands)))
    return (*passed[:first], *broadcast(call.labels, shape, operands), *passed[first:])


def _number_dims(call: Call, index: Tensor, count: int) -> tuple[tuple[int, ...], Dims]:
    """Shape and dims of the numbers that an index stands for; a mask stands for as many as it has ones."""
    if not _is_mask(index):
        return tuple(index.shape), call.dims(index)
    block_all(call, call.dims(index), "a mask along it decides which positions are taken")
    return (count,), (call.labels.counted_dim(count),)


def _is_mask(index: Tensor) -> bool:
    """Whether an index tensor says yes or no for each position."""
    return index.dtype in (torch.bool, torch.uint8)


@rule("aten.index_select")
def index_select(call: Call) -> list[Dims]:
    """Positions of one dim by number, the others pass on."""
    dims, chosen = (call.dims(tensor) for tensor in call.inputs[:2])
    if not dims:
        return [()]
    d = call.arg("dim") % len(dims)
    call.block(dims[d], _BY_NUMBER)
    return [(*dims[:d], chosen[0] if chosen else (), *dims[d + 1 :])]


@rule(
    "aten.index_add", "aten.index_add_", "aten.index_copy", "aten.index_copy_", "aten.index_fill",
    "aten.index_fill_", "aten.index_reduce", "aten.index_reduce_",
)  # fmt: skip
def index_write(call: Call) -> list[Dims]:
    """Positions of one dim are written by number, from a source that has the numbers' positions in that dim."""
    dims, chosen = call.dims(call.args[0]), call.dims(call.arg("index"))
    d = call.arg("dim") % max(1, len(dims))
    for dim in dims[d : d + 1]:
        call.block(dim, _BY_NUMBER)
    source = call.arg("source")
    if isinstance(source, Tensor) and dims and source.dim():
        own = call.dims(source)
        aligned(call, dims, own, but=d)
        call.equal(own[d], chosen[0] if chosen else ())
    if not call.name.startswith("aten.index_add"):
        block_all(call, chosen, _OVERWRITES)
    return [dims]


@rule("aten.gather")
def gather(call: Call) -> list[Dims]:
    """``out[i, j] = source[index[i, j], j]``, along any one dim."""
    dims, chosen = call.dims(call.args[0]), call.dims(call.arg("index"))
    if dims and chosen:
        d = call.arg("dim") % len(dims)
        call.block(dims[d], _BY_NUMBER)
        aligned(call, dims, chosen, but=d)
    return [chosen]


@rule(
    "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_", "aten.scatter_reduce",
    "aten.scatter_reduce_",
)  # fmt: skip
def scatter(call: Call) -> list[Dims]:
    """``self[index[i, j], j] = source[i, j]``, along any one dim."""
    dims, chosen = call.dims(call.args[0]), call.dims(call.arg("index"))
    if dims and chosen:
        d = call.arg("dim") % len(dims)
        call.block(dims[d], _BY_NUMBER)
        aligned(call, dims, chosen, but=d)
        source = call.arg("src")
        if isinstance(source, Tensor):
            aligned(call, chosen, call.dims(source))
        if not call.name.startswith("aten.scatter_add"):
            call.block(chosen[d], _OVERWRITES)
    return [dims]


@rule("aten.take")
def take(call: Call) -> list[Dims]:
    """Entries by their number in the flat tensor."""
    block_all(call, call.dims(call.args[0]), _BY_NUMBER)
    return [call.dims(call.args[1])]
