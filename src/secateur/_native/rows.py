"""A sparse weight with 16 outputs in the lanes of a vector (``sources/rows.c``)."""

from __future__ import annotations

import functools
from ctypes import Structure, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

import secateur._native as native
from secateur._native.products import Product

__all__ = ["GROUP", "NEIGHBOURS", "Packed", "pack", "product"]

GROUP = 16
"""Outputs of a group: one for each lane."""

NEIGHBOURS = 8
"""A thread takes as many groups that follow each other: their outputs are best near each other, too."""


class Packed(NamedTuple):
    """A packed weight.

    Args:
        values: float32 or bfloat16 ``(steps, 2, 16)``, 0 in an empty slot and nowhere else.
        indices: uint8 ``(steps, 2, 16)``, the columns within the windows of the steps.
        bases: int32 ``(steps,)``, the first columns of the windows.
        starts: int64 ``(groups + 1,)``, the first step of each group.
        outputs_of: int32 ``(groups, 16)``, the output in each lane, -1 for none.
    """

    values: Tensor
    indices: Tensor
    bases: Tensor
    starts: Tensor
    outputs_of: Tensor


def pack(weight: Tensor, outputs_of: Tensor) -> Packed:
    """Pack the entries that are not zero.

    Args:
        weight: Contiguous float32 ``(outputs, inputs)``.
        outputs_of: As in `Packed`.
    """
    packing = _packing(native.library())
    groups, inputs = outputs_of.shape[0], weight.shape[1]
    starts = torch.empty(groups + 1, dtype=torch.int64)
    columns = torch.empty(GROUP * (inputs + 1), dtype=torch.int32)
    given = (weight.data_ptr(), inputs, outputs_of.data_ptr(), groups, columns.data_ptr(), starts.data_ptr())
    packing(*given, None, None, None)
    steps = int(starts[-1])
    values = torch.empty(steps, 2, GROUP, dtype=torch.float32)
    indices = torch.empty(steps, 2, GROUP, dtype=torch.uint8)
    bases = torch.empty(steps, dtype=torch.int32)
    if steps:
        packing(*given, values.data_ptr(), indices.data_ptr(), bases.data_ptr())
    return Packed(values, indices, bases, starts, outputs_of)


def product(packed: Packed, shape: torch.Size, bias: Tensor, relu: bool) -> Product:
    """The product of a packed weight.

    Args:
        packed: The weight.
        shape: Its shape.
        bias: float32 ``(groups, 16)``, in the order of the lanes.
        relu: Negative outputs become zero.
    """
    held = (*packed, bias)
    kinds = (packed.values.dtype == torch.bfloat16, relu)
    weight = _Weight(*(each.data_ptr() for each in held), *shape, len(bias), *kinds)
    return Product("rows_product", weight, shape[0], held)


class _Weight(Structure):
    """`struct rows_weight`."""

    _fields_ = (
        *((name, c_void_p) for name in ("values", "indices", "bases", "starts", "outputs_of", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "groups")),
        *((name, c_int32) for name in ("is_bfloat16", "relu")),
    )


@functools.cache
def _packing(library: native.Library | None) -> Any:
    """The function of the library, without which nobody comes here."""
    assert library is not None
    pointers = [c_void_p] * 5
    return library.function("rows_pack", [c_void_p, c_int64, c_void_p, c_int64, *pointers])
