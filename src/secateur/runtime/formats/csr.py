"""Unstructured weights by row, each value with its column, for several rows of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur._native.columns import product
from secateur.runtime.formats import _cells
from secateur.runtime.formats._format import Bound, LinearFormat, Parts

__all__ = ["CSR"]


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product: a tile of rows is packed column by column, then each value is multiplied with one packed column."""
    return product(_cells.matrix(parts, shape, bias, relu))


CSR = LinearFormat("csr", "kernels", _cells.misfit, _cells.pack, _cells.unpack, _bind, rows=(3, float("inf")))
"""Compressed sparse rows, in cells that fit the cache: 16 to 64 rows of the input share each value that is read."""
