"""The product with a sparse matrix in panels and blocks: ``sources/columns.c`` by its Python names."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from secateur._native.products import Product

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "Cells", "Matrix", "matrix_of", "product"]

MOST_ROWS = 256
"""Greatest number of rows of a panel: they are numbered in one byte."""
MOST_COLUMNS = 32768
"""Greatest number of columns of a block: they are numbered, and counted, in a signed word of two bytes."""


class Cells(NamedTuple):
    """A sparse matrix of `outputs` rows and `inputs` columns, cut into panels of rows and blocks of columns.

    A cell is what is in one panel and one block; cells are stored panel by panel. An entry is a row that has values in
    a cell; entries of a cell are sorted by their number of values, the most first, then by row.

    Args:
        values: float32 or bfloat16 ``(values,)``, entry by entry, in each by column.
        columns: int16 ``(values,)``, in the block.
        rows: uint8 ``(entries,)``, in the panel.
        counts: int16 ``(entries,)``, of values, none of them 0.
        starts: int64 ``(cells + 1, 2)``: the first entry and the first value of each cell, and the ends.
    """

    values: Tensor
    columns: Tensor
    rows: Tensor
    counts: Tensor
    starts: Tensor


class Matrix(ctypes.Structure):
    """``struct columns`` of ``sources/columns.h``, with the tensors that it points into."""

    held: object = None

    _fields_ = (
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("panel", c_int64),
        ("width", c_int64),
        ("is_half", c_int64),
        ("relu", c_int64),
        ("bias", c_void_p),
        ("values", c_void_p),
        ("columns", c_void_p),
        ("rows", c_void_p),
        ("counts", c_void_p),
        ("starts", c_void_p),
    )


def matrix_of(
    cells: Cells, outputs: int, inputs: int, panel: int, width: int, bias: Tensor | None, relu: bool
) -> Matrix:
    """Describe a matrix to the kernels.

    Args:
        cells: The matrix; its tensors are contiguous and on the CPU.
        outputs: Its rows.
        inputs: Its columns.
        panel: Rows of a panel, at most `MOST_ROWS`.
        width: Columns of a block, at most `MOST_COLUMNS`.
        bias: Contiguous float32 ``(outputs,)``, or none.
        relu: Negative results become zero.
    """
    matrix = Matrix(
        outputs,
        inputs,
        panel,
        width,
        cells.values.dtype == torch.bfloat16,
        relu,
        None if bias is None else bias.data_ptr(),
        *(part.data_ptr() for part in cells),
    )
    matrix.held = cells, bias
    return matrix


def product(matrix: Matrix) -> Product:
    """The product of ``x @ matrix.T``.

    Raises:
        UnsupportedError: There is no library.
    """
    return Product("multiply_columns", matrix, int(matrix.outputs), matrix.held)
