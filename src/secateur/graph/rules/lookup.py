"""Positions taken by numbers that are data: embedding, indexing, gather, scatter, sort, masks.

The dim whose positions are numbered must stay, since the numbers are not rewritten. The dims of the numbers themselves
are dims like any other. Where values decide how many there are (a boolean mask), the result is *counted*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
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
    """``source[indices] = values``, the values broadcast."""
    dims, values = call.dims(call.args[0]), call.arg("values")
    taken = _taken(call, dims, call.arg("indices"), like=values)
    shape = tuple(size_of(dim) for dim in taken)
    own = call.dims(values)[max(0, values.dim() - len(shape)) :]  # leading dims of size 1 may be too many
    own_shape = tuple(size_of(dim) for dim in own)
    broadcast(call.labels, shape, [(shape, taken), (own_shape, own)])
    if not (call.arg("accumulate") and own_shape == shape):
        for number in call.arg("indices"):
            _block_all(call, () if number is None else call.dims(number), _OVERWRITES)
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
            _block_all(call, here, _BY_NUMBER)
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
    _block_all(call, call.dims(index), "a mask along it decides which positions are taken")
    return (count,), (call.labels.counted_dim(count),)


def _is_mask(index: Tensor) -> bool:
    """Whether an index tensor says yes or no for each position."""
    return index.dtype in (torch.bool, torch.uint8)


def _block_all(call: Call, dims: Iterable[Dim], why: str) -> None:
    """Block several dims."""
    for dim in dims:
        call.block(dim, why)


def _aligned(call: Call, one: Dims, other: Dims, *, but: int | None = None) -> None:
    """Dims are read together from their first positions on: equal where as long, otherwise their starts must stay."""
    for d, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if d == but:
            continue
        if size_of(mine) == size_of(theirs):
            call.equal(mine, theirs)
        else:
            _block_all(call, (mine, theirs), f"{call.name} uses only the first positions of it")


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
        _aligned(call, dims, own, but=d)
        call.equal(own[d], chosen[0] if chosen else ())
    if not call.name.startswith("aten.index_add"):
        _block_all(call, chosen, _OVERWRITES)
    return [dims]


@rule("aten.gather")
def gather(call: Call) -> list[Dims]:
    """``out[i, j] = source[index[i, j], j]``, along any one dim."""
    dims, chosen = call.dims(call.args[0]), call.dims(call.arg("index"))
    if dims and chosen:
        d = call.arg("dim") % len(dims)
        call.block(dims[d], _BY_NUMBER)
        _aligned(call, dims, chosen, but=d)
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
        _aligned(call, dims, chosen, but=d)
        source = call.arg("src")
        if isinstance(source, Tensor):
            _aligned(call, chosen, call.dims(source))
        if not call.name.startswith("aten.scatter_add"):
            call.block(chosen[d], _OVERWRITES)
    return [dims]


@rule("aten.take")
def take(call: Call) -> list[Dims]:
    """Entries by their number in the flat tensor."""
    _block_all(call, call.dims(call.args[0]), _BY_NUMBER)
    return [call.dims(call.args[1])]


@rule("aten.masked_select")
def masked_select(call: Call) -> list[Dims]:
    """Entries where a mask says so, in one row."""
    for tensor in call.inputs:
        _block_all(call, call.dims(tensor), "a mask along it decides which positions are taken")
    return [(call.labels.counted_dim(call.out.shape[0]),)]


@rule("aten.masked_scatter", "aten.masked_scatter_")
def masked_scatter(call: Call) -> list[Dims]:
    """Entries of a source, one after the other, go where a mask says so.

    Where the mask repeats itself along the last dim (``expand``), whole rows of the source do.
    """
    dims, mask, source = call.dims(call.args[0]), call.arg("mask"), call.arg("source")
    shape = tuple(call.args[0].shape)
    broadcast(call.labels, shape, [(shape, dims), (tuple(mask.shape), call.dims(mask))])
    rows = bool(shape) and source.dim() > 0 and source.shape[-1] == shape[-1]
    if rows and (mask.dim() == 0 or mask.shape[-1] == 1 or mask.stride(-1) == 0):
        call.equal(dims[-1], call.dims(source)[-1])
        _block_all(call, (*dims[:-1], *call.dims(source)[:-1]), "a mask along it decides which positions are taken")
    else:
        _block_all(call, (*dims, *call.dims(source)), "a mask along it decides which positions are taken")
    return [dims]


@rule("aten.nonzero", "aten.nonzero_static")
def nonzero(call: Call) -> list[Dims]:
    """Numbers of positions, as many as there are."""
    _block_all(call, call.dims(call.args[0]), f"{call.name} gives numbers of its positions")
    return [(call.labels.counted_dim(call.out.shape[0]), call.labels.fixed_dim(call.out.shape[1]))]


@rule("aten.topk", "aten.sort", "aten.multinomial")
def order(call: Call) -> list[Dims]:
    """Put positions of one dim in order, and say where they were."""
    dims = call.dims(call.args[0])
    if not dims:
        return [()] * len(call.outputs)
    d = call.arg("dim", -1) % len(dims)
    call.block(dims[d], f"{call.name} gives numbers of its positions")
    return [(*dims[:d], call.labels.fixed_dim(out.shape[d]), *dims[d + 1 :]) for out in call.outputs]


@rule(
    "aten._unique", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive",
    "aten.bincount", "aten.histc", "aten.repeat_interleave",
)  # fmt: skip
def count(call: Call) -> list[Dims]:
    """As many results as values say."""
    for tensor in call.inputs:
        _block_all(call, call.dims(tensor), f"{call.name} makes as many results as its values say")
    return [tuple(call.labels.counted_dim(size) for size in out.shape) for out in call.outputs]


@rule("aten.searchsorted", "aten.bucketize")
def search(call: Call) -> list[Dims]:
    """Where values fall between boundaries, which must not shift; the values' positions pass on."""
    names = ("sorted_sequence", "self") if call.name == "aten.searchsorted" else ("boundaries", "self")
    boundaries, values = (call.arg(name) for name in names)
    dims = call.dims(values) if isinstance(values, Tensor) else ()
    limits = call.dims(boundaries)
    call.block(limits[-1], f"{call.name} gives numbers of its positions")
    if len(limits) > 1:
        _aligned(call, limits, dims, but=len(limits) - 1)
    return [dims]


@rule("aten.isin")
def isin(call: Call) -> list[Dims]:
    """Whether each position holds one of some values."""
    tests = call.arg("test_elements")
    if isinstance(tests, Tensor):
        _block_all(call, call.dims(tests), f"{call.name} looks for its values")
    elements = call.arg("elements")
    return [call.dims(elements) if isinstance(elements, Tensor) else ()]


@rule("aten._pack_padded_sequence")
def pack(call: Call) -> list[Dims]:
    """(time, batch, …) -> (entries, …), as many as the lengths say."""
    dims = call.dims(call.args[0])
    _block_all(call, (*dims[:2], *call.dims(call.args[1])), "lengths say which positions of it are taken")
    return [(call.labels.counted_dim(call.outputs[0].shape[0]), *dims[2:]),
            (call.labels.counted_dim(call.outputs[1].shape[0]),)]  # fmt: skip
