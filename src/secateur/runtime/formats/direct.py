"""Convolutions with an unstructured weight: each value is multiplied with the patches' entries that it meets."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur._errors import ShapeError
from secateur._native.convolving import Window, convolution
from secateur.runtime.formats import _cells
from secateur.runtime.formats._format import Bound, ConvFormat, Geometry, Parts

__all__ = ["DIRECT"]


def _misfit(weight: Tensor, geometry: Geometry) -> str:
    """Why a weight is not kept so; every geometry is known."""
    return _cells.misfit(weight)


def _flat(shape: torch.Size) -> torch.Size:
    """The shape of a weight as a matrix of all that an output reads."""
    return torch.Size((shape[0], shape[1:].numel()))


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """The cells of that matrix."""
    return _cells.pack(weight.flatten(1), dtype)


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the values back into a dense weight."""
    return _cells.unpack(parts, _flat(shape)).view(shape)


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool, geometry: Geometry) -> Bound:
    """The product with packed patches."""
    stride, padding, dilation = geometry

    def size_of(height: int, width: int) -> tuple[int, int]:
        down, right = (
            (size + 2 * pad - far * (window - 1) - 1) // step + 1
            for size, pad, far, window, step in zip((height, width), padding, dilation, shape[2:], stride, strict=True)
        )
        if down < 1 or right < 1:
            raise ShapeError(
                "the window of a convolution is larger than the padded image.",
                image=(height, width),
                window=tuple(shape[2:]),
                padding=padding,
                dilation=dilation,
            )
        return down, right

    window = Window(shape[1], tuple(shape[2:]), stride, padding, dilation)
    return convolution(_cells.matrix(parts, _flat(shape), bias, relu), window, size_of)


DIRECT = ConvFormat("direct", "kernels", _misfit, _pack, _unpack, _bind)
"""Compressed sparse rows over patches that are packed in the first-level cache, 64 positions at a time."""
