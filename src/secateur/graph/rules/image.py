"""Pooling, resizing, padding, sampling and unrolling of images, channel by channel."""

from __future__ import annotations

from secateur.graph.call import Call
from secateur.graph.labels import Dims, size_of
from secateur.graph.rules._table import rule

__all__: list[str] = []


def _image(call: Call, spatial: int) -> list[Dims]:
    """All dims but the last ones pass on; those are an image of another size."""
    dims = call.dims(call.args[0])
    lead = dims[: len(dims) - spatial]
    for dim in dims[len(lead) :]:
        call.block(dim, "it is a position in an image")
    return [(*lead, *call.labels.fixed_dims(out.shape[len(lead) :])) for out in call.outputs]


@rule(
    "aten.upsample_nearest1d", "aten._upsample_nearest_exact1d", "aten.upsample_linear1d", "aten.reflection_pad1d",
    "aten.replication_pad1d",
)  # fmt: skip
def line(call: Call) -> list[Dims]:
    """(…, length)."""
    return _image(call, 1)


@rule(
    "aten.avg_pool2d", "aten.max_pool2d_with_indices", "aten.adaptive_max_pool2d", "aten._adaptive_avg_pool2d",
    "aten.upsample_nearest2d", "aten._upsample_nearest_exact2d",
    "aten.upsample_bilinear2d", "aten._upsample_bilinear2d_aa", "aten.upsample_bicubic2d",
    "aten._upsample_bicubic2d_aa", "aten.reflection_pad2d", "aten.replication_pad2d",
)  # fmt: skip
def plane(call: Call) -> list[Dims]:
    """(…, height, width)."""
    return _image(call, 2)


@rule(
    "aten.avg_pool3d", "aten.max_pool3d_with_indices", "aten.adaptive_max_pool3d", "aten._adaptive_avg_pool3d",
    "aten.upsample_nearest3d", "aten._upsample_nearest_exact3d", "aten.upsample_trilinear3d",
    "aten.reflection_pad3d", "aten.replication_pad3d",
)  # fmt: skip
def volume(call: Call) -> list[Dims]:
    """(…, depth, height, width)."""
    return _image(call, 3)


@rule("aten.fractional_max_pool2d")
def fractional_pool(call: Call) -> list[Dims]:
    """Windows that lie at random for each of (b, c)."""
    dims, samples = call.dims(call.args[0]), call.dims(call.arg("random_samples"))
    for d in range(1, len(dims) - 1):  # an image without batch has samples of a batch of one
        call.equal(dims[-2 - d], samples[-1 - d])
    call.block(samples[-1], "it is a position in an image")
    return _image(call, 2)


@rule("aten.max_unpool2d", "aten.max_unpool3d")
def unpool(call: Call) -> list[Dims]:
    """Put values back where maxima were found, channel by channel."""
    dims, indices = (call.dims(tensor) for tensor in call.args[:2])
    for mine, theirs in zip(dims, indices, strict=True):
        call.equal(mine, theirs)
    return _image(call, 2 if "2d" in call.name else 3)


@rule("aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten._grid_sampler_2d_cpu_fallback")
def grid_sampler(call: Call) -> list[Dims]:
    """Image (b, c, …) read at the points of a grid (b, …, 2 or 3)."""
    dims, grid = (call.dims(tensor) for tensor in call.args[:2])
    call.equal(dims[0], grid[0])
    for dim in (*dims[2:], grid[-1]):
        call.block(dim, "it is a position in an image")
    return [(*dims[:2], *grid[1:-1])]


@rule("aten.affine_grid_generator")
def affine_grid(call: Call) -> list[Dims]:
    """Maps (b, 2, 3) or (b, 3, 4) -> points (b, …, 2 or 3)."""
    dims = call.dims(call.args[0])
    for dim in dims[1:]:
        call.block(dim, "it is a coordinate")
    return [(dims[0], *call.labels.fixed_dims(call.out.shape[1:]))]


@rule("aten.im2col")
def im2col(call: Call) -> list[Dims]:
    """Image (…, c, h, w) -> (…, c · window, positions)."""
    dims, labels = call.dims(call.args[0]), call.labels
    for dim in dims[-2:]:
        call.block(dim, "it is a position in an image")
    height, width = call.arg("kernel_size")
    channels = labels.tidy((*dims[-3], labels.fixed(height * width)))
    return [(*dims[:-3], channels, labels.fixed_dim(call.out.shape[-1]))]


@rule("aten.col2im")
def col2im(call: Call) -> list[Dims]:
    """(…, c · window, positions) -> image (…, c, h, w)."""
    dims, labels = call.dims(call.args[0]), call.labels
    channel, window = labels.split(labels.merge(dims[-2]), call.out.shape[-3])
    for dim in ((window,), dims[-1]):
        call.block(dim, "it is a position in an image")
    return [(*dims[:-2], labels.tidy((channel,)), *labels.fixed_dims(call.out.shape[-2:]))]


@rule("torchvision.roi_align", "torchvision.roi_pool")
def roi(call: Call) -> list[Dims]:
    """Image (b, c, h, w), boxes (k, 5) -> (k, c, …)."""
    dims, boxes = (call.dims(tensor) for tensor in call.args[:2])
    for dim in (dims[0], *dims[2:], boxes[1]):
        call.block(dim, "boxes give numbers of its positions")
    return [(boxes[0], dims[1], *call.labels.fixed_dims(out.shape[2:])) for out in call.outputs]


@rule("torchvision.ps_roi_align", "torchvision.ps_roi_pool")
def position_sensitive_roi(call: Call) -> list[Dims]:
    """The same, with channels (c, window) of which each part of the window reads its own."""
    dims, boxes, labels = call.dims(call.args[0]), call.dims(call.args[1]), call.labels
    channel, window = labels.split(labels.merge(dims[1]), call.outputs[0].shape[1])
    for dim in (dims[0], *dims[2:], boxes[1], (window,)):
        call.block(dim, "boxes give numbers of its positions")
    call.block_if_used(dims[1], f"{call.name} gives the number of a position", 1)
    out = (boxes[0], labels.tidy((channel,)))
    return [(*out, *labels.fixed_dims(result.shape[2:])) for result in call.outputs]


@rule("torchvision.nms")
def nms(call: Call) -> list[Dims]:
    """Numbers of the boxes that stay, as many as their values say."""
    boxes, scores = (call.dims(tensor) for tensor in call.args[:2])
    for dim in (*boxes, *scores):
        call.block(dim, f"{call.name} gives numbers of its positions")
    return [(call.labels.counted_dim(call.out.shape[0]),)]


@rule("torchvision.deform_conv2d")
def deformable_convolution(call: Call) -> list[Dims]:
    """A convolution (see there) whose windows are shifted by offsets (b, offset groups · window · 2, h, w)."""
    x, weight, offset, mask, bias = (call.dims(tensor) for tensor in call.args[:5])
    for dims in (x[2:], weight[2:], offset[1:], mask[1:]):
        for dim in dims:
            call.block(dim, "it is a position in an image")
    if call.arg("groups") != 1 or call.arg("offset_groups") != 1:
        for dim in (x[1], *weight[:2]):
            call.block(dim, f"{call.name} in groups has no rule")
    else:
        call.equal(x[1], weight[1])
    for own in (offset[0], mask[0]):
        if size_of(own) == size_of(x[0]):
            call.equal(x[0], own)
    if size_of(bias[0]) == size_of(weight[0]):
        call.equal(weight[0], bias[0])
    image = call.labels.fixed_dims(call.out.shape[2:])
    call.capture.multiplied(x[0], *weight, *image)
    return [(x[0], weight[0], *image)]
