"""2-D convolutions with a sparse weight: ``sources/convolving.c`` by its Python name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from secateur._native.columns import Matrix
from secateur._native.products import function

__all__ = ["Window", "convolution"]

_Pair = c_int64 * 2


class Window(ctypes.Structure):
    """``struct geometry`` of ``sources/convolving.c``; pairs are (down, right)."""

    _fields_ = (
        ("inputs", c_int64),
        ("window", _Pair),
        ("stride", _Pair),
        ("padding", _Pair),
        ("dilation", _Pair),
    )


def convolution(
    matrix: Matrix, window: Window, size_of: Callable[[int, int], tuple[int, int]]
) -> Callable[[Tensor], Tensor]:
    """The function from a contiguous float32 ``(batch, inputs, height, width)`` to a new output.

    Args:
        matrix: The weight as ``(outputs, inputs * window)``.
        window: How it moves.
        size_of: The output's height and width for those of an image, both at least 1; it refuses other images.

    Raises:
        UnsupportedError: There is no library.
        MemoryError: The function found no memory for the padded image.
    """
    convolve = function("convolve_columns", (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int))
    weight, geometry, outputs = ctypes.byref(matrix), ctypes.byref(window), int(matrix.outputs)

    def convolved(x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        y = torch.empty((batch, outputs, *size_of(height, width)), dtype=torch.float32)
        if convolve(weight, geometry, x.data_ptr(), y.data_ptr(), batch, height, width, torch.get_num_threads()):
            raise MemoryError(f"no memory to pack {batch} images of {height} x {width}")
        return y

    return convolved
