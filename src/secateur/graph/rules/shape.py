"""Views and permutations: the same positions under other dims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.view", "aten._unsafe_view", "aten._reshape_alias")
def view(call: Call) -> list[Dims]:
    """Merge and split dims; positions that no product of axes describes are blocked."""
    source = call.args[0]
    return [_reshaped(call, call.dims(source), tuple(call.out.shape))]


def _reshaped(call: Call, dims: Dims, sizes: Sequence[int]) -> Dims:
    """The dims after a view as `sizes`."""
    same = tuple(size_of(dim) for dim in dims)  # not the tensor's shape: it may have been changed in place
    result = call.labels.reshape(dims, sizes)
    if result is not None:
        return result
    for dim in dims:
        call.block(dim, f"{call.name} from {same} to {tuple(sizes)} mixes its positions")
    return call.labels.fixed_dims(sizes)


@rule("aten.view.dtype")
def view_dtype(call: Call) -> list[Dims]:
    """See the bytes of the last dim as numbers of another kind, more or fewer of them."""
    dims, out = call.dims(call.args[0]), call.out
    if out.element_size() == call.args[0].element_size():
        return [dims]
    call.block(dims[-1], f"{call.name} sees its bytes as other numbers")
    return [(*dims[:-1], call.labels.fixed_dim(out.shape[-1]))]


@rule("aten.view_as_real")
def view_as_real(call: Call) -> list[Dims]:
    """Real and imaginary part in a new last dim."""
    return [(*call.dims(call.args[0]), call.labels.fixed_dim(2))]


@rule("aten.view_as_complex")
def view_as_complex(call: Call) -> list[Dims]:
    """The last dim holds real and imaginary part, and disappears."""
    dims = call.dims(call.args[0])
    call.block(dims[-1], "it holds the parts of complex numbers")
    return [dims[:-1]]


@rule("aten.t", "aten.t_")
def transpose_two(call: Call) -> list[Dims]:
    """Turn the order of (at most two) dims around."""
    return [call.dims(call.args[0])[::-1]]


@rule("aten.transpose", "aten.transpose_")
def transpose(call: Call) -> list[Dims]:
    """Exchange two dims."""
    dims = list(call.dims(call.args[0]))
    if dims:
        one, other = call.arg("dim0"), call.arg("dim1")
        dims[one], dims[other] = dims[other], dims[one]
    return [tuple(dims)]


@rule("aten.permute")
def permute(call: Call) -> list[Dims]:
    """Put dims into another order."""
    dims = call.dims(call.args[0])
    return [tuple(dims[d] for d in call.arg("dims"))]


@rule("aten.unsqueeze", "aten.unsqueeze_")
def unsqueeze(call: Call) -> list[Dims]:
    """Insert a dim of size 1."""
    dims = list(call.dims(call.args[0]))
    dims.insert(call.arg("dim") % (len(dims) + 1), ())
    return [tuple(dims)]


@rule("aten.squeeze", "aten.squeeze_")
def squeeze(call: Call) -> list[Dims]:
    """Take dims of size 1 out."""
    dims = call.dims(call.args[0])
    named = call.arg("dim", range(len(dims)))
    chosen = {d % len(dims) for d in (named if isinstance(named, Sequence) else [named])} if dims else set()
    return [tuple(dim for d, dim in enumerate(dims) if d not in chosen or size_of(dim) != 1)]


@rule("aten.expand")
def expand(call: Call) -> list[Dims]:
    """Stretch dims of size 1, whose copies all show one position; new dims are free to be any size."""
    own, shape = call.dims(call.args[0]), call.out.shape
    own = ((),) * (len(shape) - len(own)) + own
    return [tuple(d if size_of(d) == n else call.free_dim(n) for n, d in zip(shape, own, strict=True))]


@rule("aten.repeat")
def repeat(call: Call) -> list[Dims]:
    """Lay copies side by side: (copy, position) along every dim, with free copies."""
    own, times, labels = call.dims(call.args[0]), call.arg("repeats"), call.labels
    own = ((),) * (len(times) - len(own)) + own
    return [tuple(labels.tidy((*call.free_dim(n), *dim)) for n, dim in zip(times, own, strict=True))]


@rule("aten.as_strided", "aten.as_strided_", "aten.set_")
def as_strided(call: Call) -> list[Dims]:
    """Address memory directly; only another order of strides under the same shape is understood."""
    dims, out = call.dims(call.args[0]), call.out
    if call.name != "aten.set_" and call.arg("storage_offset") in (None, 0) and _same_shape(dims, out.shape):
        return [dims]
    for tensor in call.inputs:
        for dim in call.dims(tensor):
            call.block(dim, f"{call.name} addresses memory directly")
    return call.fixed()


def _same_shape(dims: Dims, shape: Sequence[int]) -> bool:
    """Whether dims have these sizes."""
    return tuple(size_of(dim) for dim in dims) == tuple(shape)


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
        call.block(dims[d], f"{call.name} moves its positions by a distance that is written in the code")
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
    call.capture.groups_of(call, group)
    return [(dims[0], labels.tidy((each, group)), *dims[2:])]
