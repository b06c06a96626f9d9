"""Dense weights in the order in which oneDNN reads them: laid out once, where torch does it anew at every call.

The zeros are multiplied like any number, so this is what a sparse format has to beat.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from secateur import _compat
from secateur.runtime.formats._format import Bound, ConvFormat, Geometry, LinearFormat, Parts

__all__ = ["PREPACKED_CONV", "PREPACKED_LINEAR"]

_LEAST_CHANNELS = 8
"""Fewer gain nothing, and with one oneDNN errs where the output is one position wide."""


def _misfit(weight: Tensor) -> str:
    """Why a weight is not kept so."""
    return "" if weight.numel() else "it has no entries"


def _misfit_conv(weight: Tensor, geometry: Geometry) -> str:
    """Why a convolution is not kept so."""
    if min(weight.shape[:2]) < _LEAST_CHANNELS:
        return f"it has less than {_LEAST_CHANNELS} channels"
    if geometry.overhangs(weight.shape[2:]):
        return "its padding is as wide as its window"
    return _misfit(weight)


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """The weight itself; the other order depends on the input."""
    return (weight.to(dtype, copy=True),)


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """A float32 copy."""
    return parts[0].to(torch.float32, copy=True)


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product, whose weight is laid out for as many rows as the first input has."""

    def laid_out(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._reorder_linear_weight(parts[0].float(), len(x))
        return found

    def plain(x: Tensor) -> Tensor:
        return functional.linear(x, parts[0].float(), bias)

    def packed(x: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found

    return _product(laid_out, packed, plain, relu)


def _bind_conv(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool, geometry: Geometry) -> Bound:
    """The product, whose weight is laid out for images as large as the first."""
    stride, padding, dilation = map(list, geometry)

    def laid_out(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
            parts[0].float(), padding, stride, dilation, 1, list(x.shape)
        )
        return found

    def plain(x: Tensor) -> Tensor:
        y = functional.conv2d(x, parts[0].float(), bias, *geometry)
        return y.contiguous(memory_format=torch.channels_last)

    def packed(x: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, weight, bias, padding, stride, dilation, 1, "none", [], ""
        )
        return found

    return _product(laid_out, packed, plain, relu)


def _product(
    laid_out: Callable[[Tensor], Tensor],
    packed: Callable[[Tensor, Tensor], Tensor],
    plain: Callable[[Tensor], Tensor],
    relu: bool,
) -> Bound:
    """A product that lays its weight out at the first input that has entries; others are for torch's own op.

    So are all where oneDNN is not, or is switched off. The ReLU comes after, as oneDNN's own makes 0 of nan.
    """
    is_here = _compat.has_prepacking()
    weight: Tensor | None = None

    def product(x: Tensor) -> Tensor:
        nonlocal weight
        if not x.numel() or not is_here:
            y = plain(x)
        else:
            if weight is None:
                weight = laid_out(x)
            y = packed(x, weight)
        return y.relu_() if relu else y

    return product


PREPACKED_LINEAR = LinearFormat("prepacked", "oneDNN", _misfit, _pack, _unpack, _bind, is_dense=True)
"""Pays from a few rows on."""

PREPACKED_CONV = ConvFormat(
    "prepacked", "oneDNN", _misfit_conv, _pack, _unpack, _bind_conv, is_dense=True, order=torch.channels_last
)
"""Takes and gives images with the channels last in memory."""
