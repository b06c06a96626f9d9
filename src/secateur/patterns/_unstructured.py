"""Unstructured: any entry may be zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.patterns._checks import check_kept
from secateur.patterns._pattern import Pattern

__all__ = ["Unstructured"]


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Every entry is a unit of its own, in row-major order.

    Example:
        >>> Unstructured().expand(torch.tensor([True, False, False, True]), torch.Size([2, 2]))
        tensor([[ True, False],
                [False,  True]])
    """

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in a unit: 1, whatever the shape."""
        del shape
        return 1

    def reduce(self, score: Tensor) -> Tensor:
        """Flatten the scores; entries are units already. Shape ``(numel,)``."""
        return score.reshape(-1)

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        """Give the kept entries their places.

        Args:
            kept: Bool ``(numel,)``; True = kept.
            shape: Shape of the mask.

        Returns:
            Bool mask of this shape. It shares the memory of a contiguous `kept`.

        Raises:
            ShapeError: `kept` has not one element an entry.
        """
        check_kept(kept, shape.numel(), shape)
        return kept.reshape(shape).contiguous()
