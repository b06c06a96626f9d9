"""A sparse weight in blocks of 16 consecutive outputs that share a column (``sources/blocks.c``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from ctypes import Structure, byref, c_int, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

import secateur._native as native

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


def product(packed: Packed, shape: torch.Size, bias: Tensor, relu: bool) -> Callable[[Tensor], Tensor]:
    """The product of a packed weight, ready to be called with contiguous float32 ``(rows, inputs)``.

    Args:
        packed: The weight.
        shape: Its shape.
        bias: float32 ``(groups, 16)``.
        relu: Negative outputs become zero.
    """
    held = (*packed, bias)
    kinds = (packed.values.dtype == torch.bfloat16, packed.columns.dtype == torch.int32, relu)
    weight = _Weight(*(each.data_ptr() for each in held), *shape, len(bias), *kinds)
    multiply, where, outputs = _multiply(native.library()), byref(weight), shape[0]
    empty, float32, threads = torch.empty, torch.float32, torch.get_num_threads

    def run(x: Tensor, held: object = held) -> Tensor:
        rows = x.shape[0]
        y = empty(rows, outputs, dtype=float32)
        if multiply(where, x.data_ptr(), y.data_ptr(), rows, threads()):
            raise MemoryError("no memory to turn the rows of x around in")
        return y

    return run


class _Weight(Structure):
    """`struct blocks_weight`."""

    _fields_ = (
        *((name, c_void_p) for name in ("values", "columns", "starts", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "groups")),
        *((name, c_int32) for name in ("is_bfloat16", "is_wide", "relu")),
    )


@functools.cache
def _multiply(library: native.Library | None) -> Any:
    """The function of the library, without which nobody comes here."""
    assert library is not None
    return library.function("blocks_product", [c_void_p, c_void_p, c_void_p, c_int64, c_int], c_int)
