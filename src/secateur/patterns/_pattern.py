"""What a pattern is."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Pattern"]


class Pattern(Protocol):
    """A way to cut a tensor into units: equally large, disjoint, and together the whole tensor.

    A pattern is a small frozen value. Its three methods agree on the number and the order of the units: for every
    tensor ``w``, ``reduce(w)`` has ``w.numel() // unit_size(w.shape)`` elements, and ``expand(kept, w.shape)`` is
    True at exactly the entries of the units that `kept` marks.
    """

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in each unit of a tensor of this shape.

        Raises:
            ShapeError: The pattern does not fit the shape.
        """
        ...

    def reduce(self, score: Tensor) -> Tensor:
        """Rate the units by the scores of their entries.

        Args:
            score: Real floating-point scores of any shape that the pattern fits.

        Returns:
            1-D scores, one a unit; raising the score of an entry never lowers that of its unit.

        Raises:
            ShapeError: The pattern does not fit the shape.
        """
        ...

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        """Make the mask that keeps some units.

        Args:
            kept: 1-D bool, one a unit; True = kept.
            shape: Shape of the mask.

        Returns:
            Contiguous bool mask of this shape, on the device of `kept`; True = kept.

        Raises:
            ShapeError: The pattern does not fit the shape, or `kept` has not one element a unit.
        """
        ...
