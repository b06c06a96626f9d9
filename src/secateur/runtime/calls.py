"""The products as ops of torch, for graphs, and the question whether a call may go past torch instead.

An op costs some 20 µs a call, more than a small product takes, so the layers call the product itself where nobody
watches: no compiler, no tracer, no mode, no transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from secateur import _compat
from secateur._errors import UnsupportedError
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, Geometry

__all__ = ["conv2d", "is_watched", "linear"]

is_watched = _compat.is_watched


@torch.library.custom_op("secateur::sparse_linear", mutates_args=())
def linear(x: Tensor, parts: list[Tensor], bias: Tensor | None, shape: list[int], format: str, relu: bool) -> Tensor:
    """Multiply float32 ``(rows, inputs)`` by a packed weight of a shape ``(outputs, inputs)``."""
    return LINEAR_FORMATS[format].bind(tuple(parts), torch.Size(shape), bias, relu)(x.contiguous())


@linear.register_fake
def _(x: Tensor, parts: list[Tensor], bias: Tensor | None, shape: list[int], format: str, relu: bool) -> Tensor:
    _refuse_onnx()
    return x.new_empty((x.shape[0], shape[0]))


@linear.register_vmap
def _(info: Any, in_dims: Sequence[int | None], x: Tensor, *weight: Any) -> tuple[Tensor, int]:
    x = _batch_first(x, in_dims)
    return linear(x.flatten(0, 1), *weight).unflatten(0, x.shape[:2]), 0


@torch.library.custom_op("secateur::sparse_conv2d", mutates_args=())
def conv2d(
    x: Tensor,
    parts: list[Tensor],
    bias: Tensor | None,
    shape: list[int],
    format: str,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Convolve float32 ``(batch, inputs, height, width)`` with a packed weight."""
    geometry = Geometry(_pair(stride), _pair(padding), _pair(dilation))
    return CONV_FORMATS[format].bind(tuple(parts), torch.Size(shape), bias, relu, geometry)(x.contiguous())


@conv2d.register_fake
def _(
    x: Tensor,
    parts: list[Tensor],
    bias: Tensor | None,
    shape: list[int],
    format: str,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    _refuse_onnx()
    sizes = [
        (size + 2 * pad - step * (window - 1) - 1) // by + 1
        for size, pad, step, window, by in zip(x.shape[2:], padding, dilation, shape[2:], stride, strict=True)
    ]
    return x.new_empty((x.shape[0], shape[0], *sizes))


@conv2d.register_vmap
def _(info: Any, in_dims: Sequence[int | None], x: Tensor, *weight: Any) -> tuple[Tensor, int]:
    x = _batch_first(x, in_dims)
    return conv2d(x.flatten(0, 1), *weight).unflatten(0, x.shape[:2]), 0


def _refuse_onnx() -> None:
    """Refuse to be a part of a graph that becomes an ONNX file."""
    if torch.onnx.is_in_onnx_export():
        raise UnsupportedError(
            "ONNX has no sparse product: a compressed model is exported as a dense one.",
            fix="torch.onnx.export(fast.to_dense(), …)",
        )


def _batch_first(x: Tensor, in_dims: Sequence[int | None]) -> Tensor:
    """An input with the dim that vmap hides in front; it hides none of a packed weight."""
    assert in_dims[0] is not None
    return x.movedim(in_dims[0], 0)


def _pair(values: list[int]) -> tuple[int, int]:
    """Two numbers as the tuple that they are."""
    return values[0], values[1]
