"""Ops whose results are numbers of positions, or as many as values say: masks, sort, unique, search."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._numbers import aligned, block_all
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast

__all__: list[str] = []


@rule("aten.masked_select")
def masked_select(call: Call) -> list[Dims]:
    """Entries where a mask says so, in one row."""
    for tensor in call.inputs:
        block_all(call, call.dims(tensor), "a mask along it decides which positions are taken")
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
        block_all(call, (*dims[:-1], *call.dims(source)[:-1]), "a mask along it decides which positions are taken")
    else:
        block_all(call, (*dims, *call.dims(source)), "a mask along it decides which positions are taken")
    return [dims]


@rule("aten.nonzero", "aten.nonzero_static")
def nonzero(call: Call) -> list[Dims]:
    """Numbers of positions, as many as there are."""
    block_all(call, call.dims(call.args[0]), f"{call.name} gives numbers of its positions")
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
        block_all(call, call.dims(tensor), f"{call.name} makes as many results as its values say")
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
        aligned(call, limits, dims, but=len(limits) - 1)
    return [dims]


@rule("aten.isin")
def isin(call: Call) -> list[Dims]:
    """Whether each position holds one of some values."""
    tests = call.arg("test_elements")
    if isinstance(tests, Tensor):
        block_all(call, call.dims(tests), f"{call.name} looks for its values")
    elements = call.arg("elements")
    return [call.dims(elements) if isinstance(elements, Tensor) else ()]


@rule("aten._pack_padded_sequence")
def pack(call: Call) -> list[Dims]:
    """(time, batch, …) -> (entries, …), as many as the lengths say."""
    dims = call.dims(call.args[0])
    block_all(call, (*dims[:2], *call.dims(call.args[1])), "lengths say which positions of it are taken")
    return [(call.labels.counted_dim(call.outputs[0].shape[0]), *dims[2:]),
            (call.labels.counted_dim(call.outputs[1].shape[0]),)]  # fmt: skip
