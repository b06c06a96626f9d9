"""LAMP: magnitudes made comparable across layers, so that one threshold for all gives each its own sparsity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from secateur.scores._magnitude import magnitude

__all__ = ["lamp"]


def lamp(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Score every weight by its share of the squares that would be left, :math:`s_u = w_u^2 / \sum_{v \geq u} w_v^2`.

    Weights of a tensor stand in ascending order of :math:`|w|` there, those of equal size in the order of their
    positions. Within a tensor the order is that of `magnitude`; the largest weight of each scores 1, so that no tensor
    is emptied before all others have one weight left. Meant for ``allocation=allocation.global_``.

    Args:
        weights: Tensors of any shape by dotted name; floating point, complex (the modulus counts) or integer.

    Returns:
        Scores in [0, 1] of the same names and shapes, on the same devices, detached, in double precision: in single
        precision weights that differ would score the same. Zero where the weight is.

    Example:
        >>> lamp({"fc.weight": torch.tensor([[1.0, -1.0, 0.0, 2.0]])})
        {'fc.weight': tensor([[0.1667, 0.2000, 0.0000, 1.0000]], dtype=torch.float64)}

    References:
        Lee, Park, Mo, Ahn, Shin 2021, "Layer-adaptive sparsity for the magnitude-based pruning", the score of section
        2.1.
    """
    return {name: _shares(values.flatten().double()).view(values.shape) for name, values in magnitude(weights).items()}


def _shares(magnitudes: Tensor) -> Tensor:
    """The scores of one tensor, flat; divided by the largest first, so that no square overflows."""
    if not magnitudes.any():
        return torch.zeros_like(magnitudes)
    squares, order = (magnitudes / magnitudes.amax()).square().sort(stable=True)
    left = squares.flip(0).cumsum(0).flip(0)
    return torch.empty_like(squares).scatter_(0, order, squares / left)
