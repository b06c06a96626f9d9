"""Channel: whole slices along one dim are kept or removed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.patterns._checks import check_dim, check_kept, lacks_dim
from secateur.patterns._norms import signed_norm
from secateur.patterns._pattern import Pattern

__all__ = ["Channel"]


@dataclass(frozen=True)
class Channel(Pattern):
    r"""Every slice along one dim is a unit: a row, a column, a channel, a filter.

    In the weight of `torch.nn.Linear` or a convolution, ``dim=0`` means rows (output features, filters) and ``dim=1``
    columns (input features, input channels).

    The score of a slice is its L2 norm, :math:`\sqrt{\sum s^2}`, carried on to scores that may be negative by keeping
    their signs: :math:`\operatorname{sign}(t) \sqrt{|t|}` with :math:`t = \sum s |s|`. So a better entry always makes
    a better slice.

    Args:
        dim: The dim whose positions are the units; negative ones count from the end.

    Raises:
        InvalidInputError: `dim` is no whole number.

    Example:
        >>> rows = Channel(dim=0)
        >>> rows.reduce(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.])
        >>> rows.expand(torch.tensor([True, False]), torch.Size([2, 3]))
        tensor([[ True,  True,  True],
                [False, False, False]])
    """

    dim: int = 0

    def __post_init__(self) -> None:
        """Check the dim."""
        check_dim(self.dim, "Channel")

    def misfit(self, shape: torch.Size) -> str:
        """That the tensor has no such dim, if it has none."""
        return lacks_dim(shape, self.dim)

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in a slice.

        Raises:
            ShapeError: The shape has no such dim.
        """
        self.check_fits(shape)
        return torch.Size([1 if i == self.dim % len(shape) else n for i, n in enumerate(shape)]).numel()

    def reduce(self, score: Tensor) -> Tensor:
        """Score each slice by the signed L2 norm of its entries.

        Args:
            score: Real floating-point scores that have this dim.

        Returns:
            ``(score.shape[dim],)``, at least float32. An infinite entry makes its slice infinite.

        Raises:
            ShapeError: The score has no such dim.
        """
        self.check_fits(score.shape)
        return signed_norm(score, [i for i in range(score.dim()) if i != self.dim % score.dim()])

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        """Make the mask that keeps some slices.

        Args:
            kept: Bool ``(shape[dim],)``; True = kept.
            shape: Shape of the mask.

        Returns:
            Contiguous bool mask of this shape.

        Raises:
            ShapeError: The shape has no such dim, or `kept` has another length than it.
        """
        self.check_fits(shape)
        dim = self.dim % len(shape)
        check_kept(kept, shape[dim], shape)
        return kept.view([-1 if i == dim else 1 for i in range(len(shape))]).expand(shape).contiguous()
