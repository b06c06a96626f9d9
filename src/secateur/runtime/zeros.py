"""What the zeros of a weight look like."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pattern_of", "sparsity_of"]

_BLOCKS = (1024, 512, 256, 128, 64, 32, 16, 8, 4)


def sparsity_of(weight: Tensor) -> float:
    """Share of the entries that are zero."""
    return 1 - int(torch.count_nonzero(weight)) / weight.numel() if weight.numel() else 0.0


def pattern_of(weight: Tensor) -> str:
    """A word for where the zeros of a weight lie.

    Args:
        weight: ``(outputs, inputs, …)``.

    Returns:
        ``"dense"``, ``"R x 1"`` where blocks of R consecutive outputs are zero together, ``"2:4"`` where at most two of
        every four consecutive inputs are not zero, else ``"unstructured"``.
    """
    nonzero = (weight != 0).flatten(1).contiguous()
    if bool(nonzero.all()):
        return "dense"
    for size in _BLOCKS:
        if nonzero.shape[0] % size == 0:
            blocks = nonzero.view(-1, size, nonzero.shape[1])
            if torch.equal(blocks.any(1), blocks.all(1)):
                return f"{size} x 1"
    kept = int(torch.count_nonzero(nonzero))
    if nonzero.shape[1] % 4 == 0 and 4 * kept > nonzero.numel() and int(nonzero.view(-1, 4).sum(1).max()) <= 2:
        return "2:4"  # with fewer than a quarter kept, scattered zeros look like that, too
    return "unstructured"
