"""Channel: whole slices along one dim are kept or removed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur._errors import ShapeError
from secateur.patterns._checks import check_kept

__all__ = ["Channel"]


@dataclass(frozen=True)
class Channel:
    r"""Every slice along one dim is a unit: a row, a column, a channel, a filter.

    In the weight of `torch.nn.Linear` or a convolution, ``dim=0`` means rows (output features, filters) and ``dim=1``
    columns (input features, input channels).

    The score of a slice is its L2 norm, :math:`\sqrt{\sum s^2}`, carried on to scores that may be negative by keeping
    their signs: :math:`\operatorname{sign}(t) \sqrt{|t|}` with :math:`t = \sum s |s|`. So a better entry always makes
    a better slice.

    Args:
        dim: The dim whose positions are the units; negative ones count from the end.

    Example:
        >>> rows = Channel(dim=0)
        >>> rows.reduce(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.])
        >>> rows.expand(torch.tensor([True, False]), torch.Size([2, 3]))
        tensor([[ True,  True,  True],
                [False, False, False]])
    """

    dim: int = 0

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in a slice.

        Raises:
            ShapeError: The shape has no such dim.
        """
        self._position(shape)
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
        dim = self._position(score.shape)
        entries = score.detach().unsqueeze(-1)  # so that a 1-D score has a dim to sum over, too
        others = [i for i in range(entries.dim()) if i != dim]
        norm = _norm(entries.clamp(min=0), others)
        if bool((entries < 0).any()):
            total = norm**2 - _norm(entries.clamp(max=0), others) ** 2
            norm = total.sign() * total.abs().sqrt()
        return norm.to(torch.promote_types(score.dtype, torch.float32))

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
        dim = self._position(shape)
        check_kept(kept, shape[dim], shape)
        return kept.view([-1 if i == dim else 1 for i in range(len(shape))]).expand(shape).contiguous()

    def _position(self, shape: torch.Size) -> int:
        """The dim counted from the front, if the shape has it."""
        if not -len(shape) <= self.dim < len(shape):
            raise ShapeError(
                f"Channel(dim={self.dim}) does not fit: there is no dim {self.dim}.",
                shape=tuple(shape),
                fix=f"dim is in [0, {len(shape)})" if shape else "leave scalars out with exclude=",
            )
        return self.dim % len(shape)


def _norm(entries: Tensor, dims: list[int]) -> Tensor:
    """L2 norm in float64, so that the squares of tiny scores (weight times gradient) do not all become 0."""
    norm: Tensor = torch.linalg.vector_norm(entries, dim=dims, dtype=torch.float64)
    return norm
