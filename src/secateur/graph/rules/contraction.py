"""Matrix products, convolutions and embeddings: the contracted dims are equal, the outer dims pass on."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.capture import Call
from secateur.graph.labels import Dim, Dims
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast

__all__: list[str] = []


@rule("aten.mm", "aten.bmm")
def matmul(call: Call) -> list[Dims]:
    """``(…, n, k) @ (…, k, m)``."""
    one, other = call.dims(call.args[0]), call.dims(call.args[1])
    call.equal(one[-1], other[-2])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        call.equal(mine, theirs)
    call.capture.multiplied(*one, other[-1])
    return [(*one[:-1], other[-1])]


@rule("aten.addmm", "aten.baddbmm")
def add_matmul(call: Call) -> list[Dims]:
    """``bias + (…, n, k) @ (…, k, m)``, the bias broadcast."""
    bias, left, right = call.args[:3]
    one, other = call.dims(left), call.dims(right)
    call.equal(one[-1], other[-2])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        call.equal(mine, theirs)
    call.capture.multiplied(*one, other[-1])
    product = (*one[:-1], other[-1])
    shape = tuple(call.out.shape)
    return [broadcast(call.labels, shape, [(shape, product), (tuple(bias.shape), call.dims(bias))])]


@rule("aten.dot", "aten.mv")
def vector(call: Call) -> list[Dims]:
    """``(…, k) @ (k)``."""
    one, other = call.dims(call.args[0]), call.dims(call.args[1])
    call.equal(one[-1], other[0])
    return [one[:-1]]


@rule("aten.convolution")
def convolution(call: Call) -> list[Dims]:
    """Input (b, g · i, …), weight (g · o, i, …) or, transposed, (g · i, o, …), output (b, g · o, …)."""
    x, weight, bias = call.args[:3]
    transposed, groups = call.arg(6, "transposed"), call.arg(8, "groups")
    inputs, kernel = call.dims(x), call.dims(weight)
    for dim in kernel[2:]:
        call.block(dim, "it is a position in a convolution's window")
    for dim in inputs[2:]:
        call.block(dim, "it is a position in an image")
    first, second = (kernel[0], kernel[1]) if not transposed else (kernel[1], kernel[0])
    channels = inputs[1]
    if groups == 1:
        call.equal(channels, second)
        out = first
    else:
        out = _grouped(call, channels, kernel, groups, transposed=transposed)
    if isinstance(bias, Tensor):
        call.equal(out, call.dims(bias)[0])
    image = tuple(call.labels.fixed_dim(size) for size in call.out.shape[2:])
    positions = image if not transposed else inputs[2:]
    call.capture.multiplied(inputs[0], *kernel, *positions)
    return [(inputs[0], out, *image)]


def _grouped(call: Call, channels: Dim, kernel: Dims, groups: int, *, transposed: bool) -> Dim:
    """State that channels are (group, channel in the group), with the same groups in and out; the output's channels."""
    labels = call.labels
    group, each = labels.split(labels.merge(channels), groups)
    own_group, rest = labels.split(labels.merge(kernel[0]), groups)
    labels.equal(labels.tidy((group,)), labels.tidy((own_group,)))
    rows = labels.tidy((rest,))
    contracted, produced = (kernel[1], rows) if not transposed else (rows, kernel[1])
    labels.equal(labels.tidy((each,)), contracted)
    call.capture.groups_of(call, group)
    return labels.tidy((own_group, *produced))


@rule("aten.embedding")
def embedding(call: Call) -> list[Dims]:
    """``weight[index]``: rows are looked up by number, columns pass on."""
    weight, index = call.args[:2]
    rows, width = call.dims(weight)
    call.block(rows, "its rows are looked up by number")
    return [(*call.dims(index), width)]
