"""Matrix products and convolutions: the contracted dims are equal, the outer dims pass on."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast

__all__: list[str] = []


def _product(call: Call, left: Tensor, right: Tensor) -> Dims:
    """``(…, n, k) @ (…, k, m)`` -> (…, n, m), noted for costs."""
    one, other = call.dims(left), call.dims(right)
    call.equal(one[-1], other[-2])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        call.equal(mine, theirs)
    call.capture.multiplied(*one, other[-1])
    return (*one[:-1], other[-1])


def _plus(call: Call, added: Tensor, product: Dims) -> list[Dims]:
    """A tensor that is broadcast to the result and added."""
    shape = tuple(call.out.shape)
    return [broadcast(call.labels, shape, [(shape, product), (tuple(added.shape), call.dims(added))])]


@rule("aten.mm", "aten.bmm")
def matmul(call: Call) -> list[Dims]:
    """``(…, n, k) @ (…, k, m)``."""
    return [_product(call, *call.args[:2])]


@rule("aten.addmm", "aten.addmm_", "aten.baddbmm", "aten.baddbmm_", "aten._addmm_activation")
def add_matmul(call: Call) -> list[Dims]:
    """``bias + (…, n, k) @ (…, k, m)``, the bias broadcast."""
    return _plus(call, call.args[0], _product(call, *call.args[1:3]))


@rule("aten.addbmm", "aten.addbmm_")
def add_sum_matmul(call: Call) -> list[Dims]:
    """``bias + sum_b (b, n, k) @ (b, k, m)``."""
    return _plus(call, call.args[0], _product(call, *call.args[1:3])[1:])


@rule("aten.dot", "aten.vdot", "aten.mv")
def vector(call: Call) -> list[Dims]:
    """``(…, k) @ (k)``."""
    one, other = call.dims(call.args[0]), call.dims(call.args[1])
    call.equal(one[-1], other[0])
    call.capture.multiplied(*one)
    return [one[:-1]]


@rule("aten.addmv", "aten.addmv_")
def add_vector(call: Call) -> list[Dims]:
    """``bias + (n, k) @ (k)``."""
    rows, contracted = call.dims(call.args[1])
    call.equal(contracted, call.dims(call.args[2])[0])
    call.capture.multiplied(rows, contracted)
    return _plus(call, call.args[0], (rows,))


@rule("aten.addr", "aten.addr_")
def add_outer(call: Call) -> list[Dims]:
    """``bias + (n) (m)^T``."""
    return _plus(call, call.args[0], tuple(call.dims(vector)[0] for vector in call.args[1:3]))


@rule("aten._cdist_forward", "aten._euclidean_dist")
def distances(call: Call) -> list[Dims]:
    """Distances of (…, n, k) and (…, m, k) -> (…, n, m)."""
    one, other = call.dims(call.args[0]), call.dims(call.args[1])
    call.equal(one[-1], other[-1])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        call.equal(mine, theirs)
    return [(*one[:-1], other[-2])]


@rule("aten._trilinear")
def bilinear(call: Call) -> list[Dims]:
    """Three tensors laid out over common dims (`expand` names those that each lacks), multiplied, summed over some."""
    laid_out = []
    for k, tensor in enumerate(call.args[:3], 1):
        dims = list(call.dims(tensor))
        for d in sorted(call.arg(f"expand{k}")):
            dims.insert(d, ())
        laid_out.append(tuple(dims))
    shapes = [tuple(size_of(dim) for dim in dims) for dims in laid_out]
    shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    common = broadcast(call.labels, shape, zip(shapes, laid_out, strict=True))
    call.capture.multiplied(*common)
    return [tuple(dim for d, dim in enumerate(common) if d not in call.arg("sumdim"))]


@rule("aten._grouped_mm")
def grouped_matmul(call: Call) -> list[Dims]:
    """``(n, k) @ (e, k, m)`` -> (n, m), where rows are dealt out to experts at offsets (e); also (e, n, k) @ (e, k, m).

    Strides must be multiples of 16 bytes.
    """
    left, right = call.args[:2]
    one, other = call.dims(left), call.dims(right)
    if right.dim() == 2:  # columns, or the contracted dim, are dealt out: only in gradients
        return _unknown_grouping(call)
    call.equal(one[-1], other[1])
    call.block(other[0], "experts are taken by number")
    offsets = call.arg("offs")
    if isinstance(offsets, Tensor):
        call.equal(call.dims(offsets)[0], other[0])
        call.block(one[0], "its positions are dealt out to experts by number")
    else:
        call.equal(one[0], other[0])
    for dim in other[1:]:
        call.capture.multiples.append((dim, 16 // left.element_size()))
    call.capture.multiplied(*one, other[2])
    return [(*one[:-1], other[2])]


def _unknown_grouping(call: Call) -> list[Dims]:
    """A form without a rule."""
    for tensor in call.inputs:
        for dim in call.dims(tensor):
            call.block(dim, f"{call.name} of these shapes has no rule")
    return call.fixed()


@rule("aten.convolution")
def convolution(call: Call) -> list[Dims]:
    """Input (b, g · i, …), weight (g · o, i, …) or, transposed, (g · i, o, …), output (b, g · o, …)."""
    x, weight, bias = call.args[:3]
    transposed, groups = call.arg("transposed"), call.arg("groups")
    inputs, kernel = call.dims(x), call.dims(weight)
    for dim in kernel[2:]:
        call.block(dim, "it is a position in a convolution's window")
    for dim in inputs[2:]:
        call.block(dim, "it is a position in an image")
    group: Dim = ()
    if groups == 1:
        out, contracted = kernel[:2] if not transposed else kernel[1::-1]
        call.equal(inputs[1], contracted)
    else:
        out = grouped_channels(call, inputs[1], kernel, groups, transposed=transposed)
        group = call.labels.split(call.labels.merge(inputs[1]), groups)[:1]
    if isinstance(bias, Tensor):
        call.equal(out, call.dims(bias)[0])
    image = call.labels.fixed_dims(call.out.shape[2:])
    call.capture.multiplied(inputs[0], *kernel, *(inputs[2:] if transposed else image), groups=group)
    return [(inputs[0], out, *image)]


def grouped_channels(call: Call, channels: Dim, kernel: Dims, groups: int, *, transposed: bool = False) -> Dim:
    """State that channels are (group, channel in the group), with the same groups in and out; the output's channels."""
    labels = call.labels
    group, each = labels.split(labels.merge(channels), groups)
    own_group, rest = labels.split(labels.merge(kernel[0]), groups)
    labels.equal(labels.tidy((group,)), labels.tidy((own_group,)))
    rows = labels.tidy((rest,))
    contracted, produced = (kernel[1], rows) if not transposed else (rows, kernel[1])
    labels.equal(labels.tidy((each,)), contracted)
    call.capture.groups_of(group)
    return labels.tidy((own_group, *produced))
