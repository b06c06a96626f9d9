"""LAMP: magnitudes made comparable across layers, so that one threshold for all gives each its own sparsity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
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
    return {name: _shares(values.flatten()).view(values.shape) for name, values in magnitude(weights).items()}


def _shares(magnitudes: Tensor) -> Tensor:
    """The scores of one tensor, flat."""
    if not magnitudes.any():
        return torch.zeros_like(magnitudes, dtype=torch.float64)
    squares, order = _ascending_squares(magnitudes)
    left = squares.flip(0).cumsum(0).flip(0)
    return torch.empty_like(squares).scatter_(0, order, squares / left)


def _ascending_squares(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """The squares in ascending order, and their positions; divided by the largest first, so that none overflows.

    What is at most 32 bits wide is sorted together with its position as one integer: floats that are not negative have
    the order of their bits, and numpy sorts integers several times faster than torch sorts floats with positions.
    """
    largest = magnitudes.amax().double()
    if magnitudes.device.type != "cpu" or magnitudes.itemsize > 4 or magnitudes.numel() >= 1 << 31:
        squares, order = (magnitudes.double() / largest).square().sort(stable=True)
        return squares, order
    keys = magnitudes.float().view(torch.int32).to(torch.int64) << 32
    keys = torch.from_numpy(np.sort((keys | torch.arange(len(keys))).numpy()))
    values = (keys >> 32).to(torch.int32).view(torch.float32)
    return (values.double() / largest).square(), keys & 0xFFFFFFFF
