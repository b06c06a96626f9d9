"""Cut a sparse matrix into panels of rows and blocks of columns, as the kernels read it, and put it together again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secateur._native.columns import Cells, Matrix, matrix_of
from secateur.runtime.formats._format import Parts

__all__ = ["block_width", "matrix", "misfit", "pack", "unpack"]

_PANEL = 128  # rows: their sums, 64 positions wide, fill 32 KiB
_BLOCK = 128  # columns at least: their activations, 64 positions wide, fill 32 KiB
_MOST_BLOCK = 2048
_STEP = 64
_VALUES = 13  # of a row in a cell, at the least: fewer do not pay for loading and storing the row's sums


def misfit(weight: Tensor) -> str:
    """Why a weight, whose first dim counts its outputs, is not kept so."""
    if weight.numel() == 0:
        return "it has no entries"
    return "" if torch.count_nonzero(weight) < weight.numel() else "it has no zeros"


def block_width(count: int, shape: torch.Size) -> int:
    """Columns of a block of a matrix ``(outputs, inputs)`` with `count` values: 128, or more for rows of few values."""
    columns = _VALUES * shape.numel() / max(count, 1)
    return max(_BLOCK, min(_MOST_BLOCK, _STEP * math.ceil(columns / _STEP)))


def pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """Pack a float32 weight ``(outputs, inputs)`` into `Cells`, whose values have the dtype given.

    What is zero in that dtype is not kept.
    """
    weight = weight.detach().to(dtype).contiguous()
    row, column = (weight != 0).nonzero(as_tuple=True)
    width = block_width(len(row), weight.shape)
    panels, blocks = _numbers(weight.shape, width)
    entry = row * blocks + column // width
    counts = torch.bincount(entry, minlength=weight.shape[0] * blocks)
    order = _order(counts, weight.shape[0], blocks, width)
    # In row-major order, too, the values of an entry follow each other: they move together.
    moves = torch.empty_like(counts)
    moves[order] = _begins(counts[order])
    moves -= _begins(counts)
    places = torch.arange(len(row)) + moves[entry]
    values, columns = torch.empty(len(row), dtype=dtype), torch.empty(len(row), dtype=torch.int16)
    values[places] = weight[row, column]
    columns[places] = (column % width).to(torch.int16)
    held = order[counts[order] > 0]
    rows, cell = held // blocks % _PANEL, held // blocks // _PANEL * blocks + held % blocks
    sizes = torch.zeros(panels * blocks + 1, 2, dtype=torch.int64)
    sizes.index_add_(0, cell + 1, torch.stack([torch.ones_like(held), counts[held]], 1))
    return Cells(values, columns, rows.to(torch.uint8), counts[held].to(torch.int16), sizes.cumsum(0))


def unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the values back into a dense float32 weight ``(outputs, inputs)``."""
    cells = Cells(*parts)
    width = block_width(len(cells.values), shape)
    _, blocks = _numbers(shape, width)
    cell = torch.repeat_interleave(torch.arange(len(cells.starts) - 1), cells.starts[:, 0].diff())
    row = cell // blocks * _PANEL + cells.rows
    entry = torch.repeat_interleave(torch.arange(len(row)), cells.counts.long())
    weight = torch.zeros(shape, dtype=torch.float32)
    weight[row[entry], (cell % blocks * width)[entry] + cells.columns] = cells.values.float()
    return weight


def matrix(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Matrix:
    """Describe a packed weight ``(outputs, inputs)`` to the kernels."""
    cells = Cells(*parts)
    return matrix_of(cells, shape[0], shape[1], _PANEL, block_width(len(cells.values), shape), bias, relu)


def _numbers(shape: torch.Size, width: int) -> tuple[int, int]:
    """Panels and blocks."""
    return -(-shape[0] // _PANEL), -(-shape[1] // width)


def _begins(counts: Tensor) -> Tensor:
    """Where each of some runs begins that follow each other."""
    return counts.cumsum(0) - counts


def _order(counts: Tensor, outputs: int, blocks: int, width: int) -> Tensor:
    """Entries, numbered row by row, in the order of the cells, and in a cell by count, the most first."""
    entry = torch.arange(outputs * blocks)
    cell = entry // blocks // _PANEL * blocks + entry % blocks
    return torch.argsort(cell * (width + 1) + width - counts, stable=True)
