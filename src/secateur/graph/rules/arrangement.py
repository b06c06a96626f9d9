"""The same positions in another arrangement: diagonals, windows, reversals, shuffles."""

from __future__ import annotations

import numpy as np

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.diagonal", "aten.diagonal_copy")
def diagonal(call: Call) -> list[Dims]:
    """Positions (i, i) of two dims, as a new last dim."""
    dims = list(call.dims(call.args[0]))
    one, other = sorted((call.arg("dim1") % len(dims), call.arg("dim2") % len(dims)))
    last, first = dims.pop(other), dims.pop(one)
    if call.arg("offset") == 0 and size_of(first) == size_of(last):
        call.equal(first, last)
        return [(*dims, first)]
    for dim in (first, last):
        call.block(dim, f"{call.name} compares the numbers of its positions")
    return [(*dims, call.labels.fixed_dim(call.out.shape[-1]))]


@rule("aten.diag_embed")
def diag_embed(call: Call) -> list[Dims]:
    """The last dim as the positions (i, i) of two new ones, zeros elsewhere."""
    dims, out = call.dims(call.args[0]), call.out
    rows, columns = call.arg("dim1") % out.dim(), call.arg("dim2") % out.dim()
    last = dims[-1]
    if call.arg("offset"):
        call.block(last, f"{call.name} shifts the numbers of its positions")
        last = call.labels.fixed_dim(out.shape[rows])
    result = list(dims[:-1])
    for d in sorted((rows, columns)):
        result.insert(d, last)
    return [tuple(result)]


@rule("aten.unfold")
def unfold(call: Call) -> list[Dims]:
    """Windows along a dim, their positions in a new last dim."""
    dims = list(call.dims(call.args[0]))
    if not dims:
        return call.fixed()
    d = call.arg("dimension") % len(dims)
    call.block(dims[d], "windows of it are taken")
    dims[d] = call.labels.fixed_dim(call.out.shape[d])
    return [(*dims, call.labels.fixed_dim(call.out.shape[-1]))]


@rule("aten.flip")
def flip(call: Call) -> list[Dims]:
    """Turn the order of positions around."""
    dims = list(call.dims(call.args[0]))
    for d in call.arg("dims"):
        dims[d] = _reversed(call, dims[d])
    return [tuple(dims)]


@rule("aten.rot90")
def rot90(call: Call) -> list[Dims]:
    """Turn a plane of two dims by quarters."""
    dims, (one, other) = list(call.dims(call.args[0])), call.arg("dims")
    turns = call.arg("k") % 4
    if turns >= 2:
        dims[one], dims[other] = _reversed(call, dims[one]), _reversed(call, dims[other])
    if turns % 2:
        dims[one], dims[other] = _reversed(call, dims[other]), dims[one]
    return [tuple(dims)]


def _reversed(call: Call, dim: Dim) -> Dim:
    """The positions in reverse order."""
    return call.labels.taken(dim, np.arange(size_of(dim))[::-1])


@rule("aten.roll")
def roll(call: Call) -> list[Dims]:
    """Move positions by fixed distances, so that none can go from the dims that move."""
    dims = call.dims(call.args[0])
    for d in call.arg("dims") or range(len(dims)):
        call.block_if_used(dims[d], f"{call.name} moves its positions by a distance that is written in the code")
    return [dims]


@rule("aten.pixel_shuffle")
def pixel_shuffle(call: Call) -> list[Dims]:
    """Channels (c, r, r) become c channels of a larger image; only whole c can go."""
    dims, factor, labels = call.dims(call.args[0]), call.arg("upscale_factor"), call.labels
    _block_image(call, dims)
    outer, inner = labels.split(labels.merge(dims[-3]), size_of(dims[-3]) // factor**2)
    call.block((inner,), f"{call.name} makes it a position in an image")
    return [(*dims[:-3], labels.tidy((outer,)), *labels.fixed_dims(call.out.shape[-2:]))]


@rule("aten.pixel_unshuffle")
def pixel_unshuffle(call: Call) -> list[Dims]:
    """The other way round."""
    dims, labels = call.dims(call.args[0]), call.labels
    _block_image(call, dims)
    channels = labels.tidy((*dims[-3], labels.fixed(call.arg("downscale_factor") ** 2)))
    return [(*dims[:-3], channels, *labels.fixed_dims(call.out.shape[-2:]))]


def _block_image(call: Call, dims: Dims) -> None:
    """The last two dims are an image."""
    for dim in dims[-2:]:
        call.block(dim, "it is a position in an image")


@rule("aten.channel_shuffle")
def channel_shuffle(call: Call) -> list[Dims]:
    """Channels (g, c) become (c, g)."""
    dims, labels = call.dims(call.args[0]), call.labels
    group, each = labels.split(labels.merge(dims[1]), call.arg("groups"))
    call.capture.groups_of(group)
    return [(dims[0], labels.tidy((each, group)), *dims[2:])]
