"""A sparse weight in blocks of 16 consecutive outputs that share a column (``sources/blocks.c``)."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from secateur._native.products import Product

__all__ = ["GROUP", "Packed", "product"]

GROUP = 16
"""Outputs of a block."""


class Packed(NamedTuple):
    """A packed weight.

    Args:
        values: float32 or bfloat16 ``(blocks, 16)``.
        columns: ``(blocks,)``; int16 that holds unsigned numbers, or int32.
        starts: int64 ``(groups + 1,)``, the first block of each 16 outputs.
    """

    values: Tensor
    columns: Tensor
    starts: Tensor


def product(packed: Packed, shape: torch.Size, bias: Tensor, relu: bool) -> Product:
    """The product of a packed weight.

    Args:
        packed: The weight.
        shape: Its shape.
        bias: float32 ``(groups, 16)``.
        relu: Negative outputs become zero.
    """
    held = (*packed, bias)
    kinds = (packed.values.dtype == torch.bfloat16, packed.columns.dtype == torch.int32, relu)
    weight = _Weight(*(each.data_ptr() for each in held), *shape, len(bias), *kinds)
    return Product("blocks_product", weight, shape[0], held)


class _Weight(Structure):
    """`struct blocks_weight`."""

    _fields_ = (
        *((name, c_void_p) for name in ("values", "columns", "starts", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "groups")),
        *((name, c_int32) for name in ("is_bfloat16", "is_wide", "relu")),
    )
