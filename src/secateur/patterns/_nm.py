"""N:M: of every M neighbours along a dim, N are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur._errors import InfeasibleError, InvalidInputError, ShapeError
from secateur._native.grouping import highest_of_groups
from secateur._units import check_scores
from secateur.patterns._checks import check_dim, check_kept, is_count, lacks_dim, undivided
from secateur.patterns._pattern import Pattern

__all__ = ["NM"]

_LARGEST_COMPARED = 64
"""Groups up to this size are ranked by comparing all pairs; in larger ones a sort is faster."""

_PIECE = 1 << 18
"""Scores that are ranked at a time, so that what is made of them stays in a CPU's caches."""


@dataclass(frozen=True)
class NM(Pattern):
    """Of every `m` neighbours along a dim exactly `n` are kept: those with the highest scores.

    In the weight of `torch.nn.Linear` and convolutions ``dim=1`` means the inputs, which is what hardware asks for
    (2:4). A tensor whose size along the dim is no multiple of `m` does not fit. Every unit is one entry; they are
    numbered with the dim last, so that groups are neighbours.

    The sparsity is ``1 - n / m`` in every tensor, so an allocation has nothing to share out: only one that asks for
    exactly that (`secateur.allocation.uniform`) goes with it.

    Args:
        n: Entries of a group that are kept.
        m: Entries of a group.
        dim: The dim along which neighbours form a group; negative ones count from the end.

    Raises:
        InvalidInputError: Not ``0 < n < m``, or `dim` is no whole number.

    Example:
        >>> pattern, score = NM(2, 4), torch.tensor([[0.1, 0.4, 0.2, 0.3, 9.0, 8.0, 7.0, 6.0]])
        >>> pattern.expand(pattern.choose(pattern.reduce(score), 4), score.shape)
        tensor([[False,  True, False,  True,  True,  True, False, False]])

    References:
        Mishra et al. 2021, "Accelerating sparse deep neural networks" (2:4); Zhou et al. 2021, "Learning N:M
        fine-grained structured sparse neural networks from scratch".
    """

    n: int = 2
    m: int = 4
    dim: int = 1

    def __post_init__(self) -> None:
        """Check that something is kept and something goes."""
        if not (is_count(self.n) and is_count(self.m) and self.n < self.m):
            raise InvalidInputError(
                "N:M keeps n of every m entries, 0 < n < m.", n=self.n, m=self.m, fix="patterns.NM(n=2, m=4)"
            )
        check_dim(self.dim, "NM")

    @property
    def sparsity(self) -> float:
        """Fraction of zeros in every tensor, ``1 - n / m``."""
        return (self.m - self.n) / self.m

    def misfit(self, shape: torch.Size) -> str:
        """That the tensor has no such dim, or that its size is no multiple of `m`."""
        return lacks_dim(shape, self.dim) or undivided(shape, self.dim % len(shape), self.m)

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in a unit: 1.

        Raises:
            ShapeError: The pattern does not fit the shape.
        """
        self.check_fits(shape)
        return 1

    def reduce(self, score: Tensor) -> Tensor:
        """Line the scores up with the dim last. Shape ``(numel,)``.

        Raises:
            ShapeError: The pattern does not fit the scores.
        """
        self.check_fits(score.shape)
        return score.movedim(self.dim, -1).reshape(-1)

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        """Give the kept entries their places.

        Args:
            kept: Bool ``(numel,)``, in the order of `reduce`; True = kept.
            shape: Shape of the mask.

        Returns:
            Contiguous bool mask of this shape. It may share the memory of `kept`.

        Raises:
            ShapeError: The pattern does not fit the shape, or `kept` has not one element an entry.
        """
        self.check_fits(shape)
        check_kept(kept, shape.numel(), shape)
        dim = self.dim % len(shape)
        moved = [*shape[:dim], *shape[dim + 1 :], shape[dim]]
        return kept.view(moved).movedim(-1, dim).contiguous()

    def choose(self, scores: Tensor, num_removed: int) -> Tensor:
        """Keep the `n` highest of each group; of equal scores the first goes first.

        Args:
            scores: 1-D, in the order of `reduce`; no NaN.
            num_removed: Entries that go. There is one number that is possible.

        Returns:
            1-D bool; True = kept.

        Raises:
            InvalidInputError: A score is NaN.
            ShapeError: The scores do not make up whole groups.
            InfeasibleError: Another number than the pattern removes.
        """
        check_scores({"scores": scores})
        if scores.numel() % self.m:
            raise ShapeError(f"the scores do not make up groups of {self.m}.", scores=tuple(scores.shape))
        self._check_count(num_removed, scores.numel())
        found = highest_of_groups(scores, self.m, self.n)
        return self._highest(scores) if found is None else found

    def _highest(self, scores: Tensor) -> Tensor:
        """The same in torch, of scores that fit."""
        groups = scores.detach().view(-1, self.m)
        kept = torch.empty(groups.shape, dtype=torch.bool, device=groups.device)
        step = max(_PIECE // self.m, 1) if groups.device.type == "cpu" else max(len(groups), 1)
        for some, its in zip(groups.split(step), kept.split(step), strict=True):
            its.copy_(_ranks(some) >= self.m - self.n)
        return kept.view(-1)

    def _check_count(self, num_removed: int, num_units: int) -> None:
        """Refuse any other number than that of the pattern."""
        own = num_units // self.m * (self.m - self.n)
        if num_removed != own:
            raise InfeasibleError(
                f"{self!r} removes {own} of {num_units} entries, no more and no less.",
                asked=num_removed,
                fix="allocation=allocation.uniform, with sparsity= left out",
            )


def _ranks(groups: Tensor) -> Tensor:
    """How many entries of its group go before each entry: the lower ones, and equal ones at earlier positions.

    Args:
        groups: Scores ``(groups, m)`` without NaN.

    Returns:
        Integers of the same shape, each row a permutation of ``0 … m - 1``.
    """
    if groups.shape[1] > _LARGEST_COMPARED:
        return groups.argsort(dim=1, stable=True).argsort(dim=1)
    members = groups.t().contiguous()
    size = len(members)
    # to begin with, as if every later member went before it
    ranks = torch.arange(size - 1, -1, -1, dtype=torch.int8, device=groups.device)[:, None].repeat(1, len(groups))
    for distance in range(1, size):
        first_goes = (members[:-distance] <= members[distance:]).view(torch.int8)
        ranks[distance:] += first_goes
        ranks[:-distance] -= first_goes
    return ranks.t()
