"""What a pattern is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from secateur._errors import ShapeError
from secateur._units import lowest

__all__ = ["Pattern"]


class Pattern(ABC):
    """Which shapes of zeros are allowed: a tensor is cut into units, and some rule says which of them may stay.

    A pattern is a small frozen value. Units are disjoint and make up the whole tensor; `reduce`, `choose` and `expand`
    agree on their number and order. A pattern of one's own needs `unit_size`, `reduce` and `expand` only: then it fits
    every tensor, and any number of its units may go.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Halves(Pattern):
        ...     "The first half and the second half of a tensor."
        ...     def unit_size(self, shape):
        ...         return shape.numel() // 2
        ...     def reduce(self, score):
        ...         return score.reshape(2, -1).sum(dim=1)
        ...     def expand(self, kept, shape):
        ...         return kept.repeat_interleave(shape.numel() // 2).view(shape)
        >>> halves, score = Halves(), torch.tensor([[3.0, 2.0], [1.0, 1.0]])
        >>> halves.expand(halves.choose(halves.reduce(score), 1), score.shape)
        tensor([[ True,  True],
                [False, False]])
    """

    @property
    def sparsity(self) -> float | None:
        """Fraction of zeros, where the pattern leaves no choice; None where it does."""
        return None

    def misfit(self, shape: torch.Size) -> str:
        """Why tensors of this shape cannot have the pattern; empty if they can."""
        del shape
        return ""

    def remainder(self, shape: torch.Size) -> str:
        """What is smaller than the other units because a size does not divide; empty if nothing is."""
        del shape
        return ""

    @abstractmethod
    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in each unit of a tensor of this shape, those at its edges aside.

        Raises:
            ShapeError: The pattern does not fit the shape.
        """

    @abstractmethod
    def reduce(self, score: Tensor) -> Tensor:
        """Rate the units by the scores of their entries.

        Args:
            score: Real floating-point scores of any shape that the pattern fits.

        Returns:
            1-D scores, one a unit; raising the score of an entry never lowers that of its unit.

        Raises:
            ShapeError: The pattern does not fit the shape.
        """

    @abstractmethod
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

    def choose(self, scores: Tensor, num_removed: int) -> Tensor:
        """Choose the units that stay: those with the highest scores that the pattern allows.

        Args:
            scores: What `reduce` returned; ``-inf`` goes first. Of equal scores the first goes first.
            num_removed: Units that go, exactly.

        Returns:
            1-D bool, one a unit; True = kept.

        Raises:
            InvalidInputError: A score is NaN, or there are not that many units.
            InfeasibleError: The pattern does not allow this number.
        """
        return lowest(scores, num_removed)

    def check_fits(self, shape: torch.Size) -> None:
        """Refuse a shape that the pattern does not fit.

        Raises:
            ShapeError: It does not.
        """
        why = self.misfit(shape)
        if why:
            raise ShapeError(
                f"{self!r} does not fit: {why}.",
                shape=tuple(shape),
                fix="exclude=[…] leaves tensors out, include=[…] names those that are meant",
            )
