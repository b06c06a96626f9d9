"""Calls of ops on images: pooling, resizing, padding, sampling."""

from __future__ import annotations

from typing import Any

import torch

from tests.graph.oracle import Case, Draw, example


def image(g: Draw, spatial: int) -> Any:
    return g.real(g.size(), g.size(), *[4] * spatial)


@example("aten.upsample_nearest1d", "aten._upsample_nearest_exact1d")
def nearest1d(g: Draw) -> Case:
    return Case((image(g, 1), [6]))


@example("aten.upsample_linear1d")
def linear1d(g: Draw) -> Case:
    return Case((image(g, 1), [6], False))


@example("aten.upsample_nearest2d", "aten._upsample_nearest_exact2d")
def nearest2d(g: Draw) -> Case:
    return Case((image(g, 2), [6, 3]))


@example(
    "aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten._upsample_bilinear2d_aa",
    "aten._upsample_bicubic2d_aa",
)  # fmt: skip
def linear2d(g: Draw) -> Case:
    return Case((image(g, 2), [6, 3], False))


@example("aten.upsample_nearest3d", "aten._upsample_nearest_exact3d")
def nearest3d(g: Draw) -> Case:
    return Case((image(g, 3), [6, 3, 4]))


@example("aten.upsample_trilinear3d")
def linear3d(g: Draw) -> Case:
    return Case((image(g, 3), [6, 3, 4], False))


@example("aten.reflection_pad1d", "aten.replication_pad1d")
def pad1d(g: Draw) -> Case:
    return Case((image(g, 1), [1, 2]))


@example("aten.reflection_pad2d", "aten.replication_pad2d")
def pad2d(g: Draw) -> Case:
    return Case((image(g, 2), [1, 2, 0, 1]))


@example("aten.reflection_pad3d", "aten.replication_pad3d")
def pad3d(g: Draw) -> Case:
    return Case((image(g, 3), [1, 2, 0, 1, 1, 1]))


@example("aten.avg_pool2d", "aten.max_pool2d_with_indices")
def pool2d(g: Draw) -> Case:
    return Case((image(g, 2), [2, 2]))


@example("aten.avg_pool3d", "aten.max_pool3d_with_indices")
def pool3d(g: Draw) -> Case:
    return Case((image(g, 3), [2, 2, 2]))


@example("aten.adaptive_max_pool2d", "aten._adaptive_avg_pool2d")
def adaptive2d(g: Draw) -> Case:
    return Case((image(g, 2), [2, 3]))


@example("aten.adaptive_max_pool3d", "aten._adaptive_avg_pool3d")
def adaptive3d(g: Draw) -> Case:
    return Case((image(g, 3), [2, 3, 2]))


@example("aten.fractional_max_pool2d", values=False)
def fractional(g: Draw) -> Case:
    x = image(g, 2)
    return Case((x, [2, 2], [2, 2], torch.rand(*x.shape[:2], 2, dtype=torch.float64)))


EMPTY = "a position that goes leaves a zero, as one that is zero does"


@example("aten.max_unpool2d", blocks=EMPTY)
def unpool2d(g: Draw) -> Case:
    pooled, numbers = torch.nn.functional.max_pool2d(image(g, 2), 2, return_indices=True)
    return Case((pooled, numbers, [4, 4]))


@example("aten.max_unpool3d", blocks=EMPTY)
def unpool3d(g: Draw) -> Case:
    pooled, numbers = torch.nn.functional.max_pool3d(image(g, 3), 2, return_indices=True)
    return Case((pooled, numbers, [4, 4, 4], [2, 2, 2], [0, 0, 0]))


@example("aten.grid_sampler_2d")
def grid2d(g: Draw) -> Case:
    x = image(g, 2)
    return Case((x, torch.rand(x.shape[0], 3, 4, 2, dtype=torch.float64), 0, 0, False))


@example("aten._grid_sampler_2d_cpu_fallback")
def grid2d_fallback(g: Draw) -> Case:
    x = image(g, 2).float()
    return Case((x, torch.rand(x.shape[0], 3, 4, 2), 0, 0, False))


@example("aten.grid_sampler_3d")
def grid3d(g: Draw) -> Case:
    x = image(g, 3)
    return Case((x, torch.rand(x.shape[0], 2, 3, 4, 3, dtype=torch.float64), 0, 0, False))


@example("aten.affine_grid_generator", frees=False)
def affine(g: Draw) -> Case:
    return Case((g.real(2, 2, 3), [2, 3, 4, 4], False))


@example("aten.im2col")
def im2col(g: Draw) -> Case:
    return Case((image(g, 2), [2, 2], [1, 1], [0, 0], [1, 1]))


@example("aten.col2im")
def col2im(g: Draw) -> Case:
    return Case((g.real(g.size(), 4 * g.size(), 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]))


def boxes(g: Draw, images: int) -> Any:
    corners = torch.rand(g.size(), 4, dtype=torch.float64)
    corners[:, 2:] += 2
    return torch.cat([g.numbers(images, len(corners), 1).double(), corners], 1)


@example("torchvision.roi_align")
def roi_align(g: Draw) -> Case:
    return Case((g.real(2, g.size(), 4, 4), boxes(g, 2), 1.0, 2, 2, 2, False))


@example("torchvision.roi_pool")
def roi_pool(g: Draw) -> Case:
    return Case((g.real(2, g.size(), 4, 4), boxes(g, 2), 1.0, 2, 2))


@example("torchvision.ps_roi_align", compared=1)
def ps_roi_align(g: Draw) -> Case:
    return Case((g.real(2, 4 * g.size(), 4, 4), boxes(g, 2), 1.0, 2, 2, 2))


@example("torchvision.ps_roi_pool", compared=1)
def ps_roi_pool(g: Draw) -> Case:
    return Case((g.real(2, 4 * g.size(), 4, 4), boxes(g, 2), 1.0, 2, 2))


@example("torchvision.nms", frees=False)
def nms(g: Draw) -> Case:
    corners = boxes(g, 1)[:, 1:]
    return Case((corners, g.positive(len(corners)), 0.5))


@example("torchvision.deform_conv2d")
def deform_conv2d(g: Draw) -> Case:
    groups, c, o = g.choose([1, 1, 2]), g.size(), g.size()
    b = g.size()
    args = (g.real(b, groups * c, 4, 4), g.real(groups * o, c, 3, 3), g.real(b, 18, 2, 2), g.real(b, 9, 2, 2))
    return Case((*args, g.real(groups * o), 1, 1, 0, 0, 1, 1, groups, 1, True))
