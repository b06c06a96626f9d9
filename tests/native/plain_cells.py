"""Sparse matrices cut into cells by plain loops: the layout as its words say it."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur._native.columns import Cells, Matrix, matrix_of

__all__ = ["cells_of", "plain_matrix"]


def cells_of(weight: Tensor, dtype: torch.dtype, panel: int, width: int) -> Cells:
    """The cells of a weight ``(outputs, inputs)``, entry by entry."""
    values: list[float] = []
    columns: list[int] = []
    rows: list[int] = []
    counts: list[int] = []
    starts = [(0, 0)]
    for top in range(0, weight.shape[0], panel):
        for left in range(0, weight.shape[1], width):
            cell = weight[top : top + panel, left : left + width].tolist()
            entries = [(row, [k for k, value in enumerate(line) if value != 0]) for row, line in enumerate(cell)]
            for row, kept in sorted(entries, key=lambda entry: -len(entry[1])):
                if kept:
                    rows.append(row)
                    counts.append(len(kept))
                    columns += kept
                    values += [cell[row][k] for k in kept]
            starts.append((len(rows), len(values)))
    return Cells(
        torch.tensor(values, dtype=dtype),
        torch.tensor(columns, dtype=torch.int16),
        torch.tensor(rows, dtype=torch.uint8),
        torch.tensor(counts, dtype=torch.int16),
        torch.tensor(starts, dtype=torch.int64),
    )


def plain_matrix(weight: Tensor, dtype: torch.dtype, panel: int, width: int, bias: Tensor | None, relu: bool) -> Matrix:
    """The same for the kernels."""
    return matrix_of(cells_of(weight, dtype, panel, width), *weight.shape, panel, width, bias, relu)
