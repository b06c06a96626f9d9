"""Views and permutations: the same positions under other dims."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.graph.capture import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten.unflatten", "aten.flatten")
def view(call: Call) -> list[Dims]:
    """Merge and split dims; positions that no product of axes describes are blocked."""
    source = call.args[0]
    dims = call.labels.reshape(call.dims(source), tuple(call.out.shape))
    if dims is None:
        return [
            _blocked(call, f"{call.name} from {tuple(source.shape)} to {tuple(call.out.shape)} mixes its positions")
        ]
    return [dims]


def _blocked(call: Call, why: str) -> Dims:
    """Block the source's dims and make the result fixed."""
    for dim in call.dims(call.args[0]):
        call.block(dim, why)
    return call.labels.fixed_dims(call.out.shape)


@rule("aten.t", "aten.t_", "aten.numpy_T")
def transpose_two(call: Call) -> list[Dims]:
    """Turn the order of (at most two) dims around."""
    return [call.dims(call.args[0])[::-1]]


@rule("aten.transpose", "aten.transpose_")
def transpose(call: Call) -> list[Dims]:
    """Exchange two dims."""
    dims = list(call.dims(call.args[0]))
    if dims:
        one, other = (d % len(dims) for d in call.args[1:3])
        dims[one], dims[other] = dims[other], dims[one]
    return [tuple(dims)]


@rule("aten.permute")
def permute(call: Call) -> list[Dims]:
    """Put dims into another order."""
    dims = call.dims(call.args[0])
    return [tuple(dims[d] for d in call.args[1])]


@rule("aten.unsqueeze", "aten.unsqueeze_")
def unsqueeze(call: Call) -> list[Dims]:
    """Insert a dim of size 1."""
    dims = list(call.dims(call.args[0]))
    dims.insert(call.args[1] % (len(dims) + 1), ())
    return [tuple(dims)]


@rule("aten.squeeze", "aten.squeeze_")
def squeeze(call: Call) -> list[Dims]:
    """Take dims of size 1 out."""
    source = call.args[0]
    named = call.args[1] if len(call.args) > 1 else range(source.dim())
    chosen = {d % source.dim() for d in (named if isinstance(named, Sequence) else [named])} if source.dim() else set()
    pairs = enumerate(zip(source.shape, call.dims(source), strict=True))
    return [tuple(dim for d, (size, dim) in pairs if not (d in chosen and size == 1))]


@rule("aten.expand")
def expand(call: Call) -> list[Dims]:
    """Stretch dims of size 1, whose copies all show one position; new dims are free to be any size."""
    source, shape = call.args[0], call.out.shape
    own, lead = call.dims(source), len(shape) - call.args[0].dim()
    dims = []
    for d, size in enumerate(shape):
        kept = d >= lead and source.shape[d - lead] == size
        dims.append(own[d - lead] if kept else call.labels.fresh_dim(size))
    return [tuple(dims)]


@rule("aten.repeat")
def repeat(call: Call) -> list[Dims]:
    """Lay copies side by side: (copy, position) along every dim, with free copies."""
    source, times = call.args[0], call.args[1]
    own = ((),) * (len(times) - source.dim()) + call.dims(source)
    labels = call.labels
    return [tuple(labels.tidy((*labels.fresh_dim(n), *dim)) for n, dim in zip(times, own, strict=True))]


@rule("aten.as_strided", "aten.as_strided_")
def as_strided(call: Call) -> list[Dims]:
    """Only a change of strides under the same shape is understood."""
    source = call.args[0]
    if tuple(call.out.shape) == tuple(source.shape) and call.arg(3, "storage_offset") in (None, 0):
        return [call.dims(source)]
    return [_blocked(call, f"{call.name} addresses memory directly")]


@rule("aten.pixel_shuffle", "aten.pixel_unshuffle")
def pixel_shuffle(call: Call) -> list[Dims]:
    """Channels (c, r, r) become positions of the image, or the other way round; only whole c can go."""
    source, factor = call.args[:2]
    dims = call.dims(source)
    labels, area = call.labels, factor * factor
    spatial = tuple(labels.fixed_dim(size) for size in call.out.shape[-2:])
    if call.name == "aten.pixel_shuffle":
        outer, inner = labels.split(labels.merge(dims[-3]), source.shape[-3] // area)
        call.block((inner,), "pixel_shuffle makes it a position in an image")
        return [(*dims[:-3], labels.tidy((outer,)), *spatial)]
    return [(*dims[:-3], labels.tidy((*dims[-3], labels.fixed(area))), *spatial)]
