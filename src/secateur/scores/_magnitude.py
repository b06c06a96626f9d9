"""Magnitude: small weights go first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["magnitude"]

_RANKED_AS_THEY_ARE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def magnitude(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Score every weight by its absolute value, ``s = |w|``.

    Args:
        weights: Tensors of any shape by dotted name; floating point, complex (the modulus counts) or integer.

    Returns:
        Scores of the same names and shapes, on the same devices, detached; float16, bfloat16, float32 or float64 as
        the weights are, float32 for eight-bit and integer weights.

    Example:
        >>> magnitude({"fc.weight": torch.tensor([[-2.0, 0.5]])})
        {'fc.weight': tensor([[2.0000, 0.5000]])}

    References:
        Han, Pool, Tran, Dally 2015, "Learning both weights and connections for efficient neural networks", section 3.
    """
    return {name: _rankable(weight.detach()).abs() for name, weight in weights.items()}


def _rankable(weight: Tensor) -> Tensor:
    """The weight in a dtype whose absolute values are floats that can be compared."""
    return weight if weight.is_complex() or weight.dtype in _RANKED_AS_THEY_ARE else weight.to(torch.float32)
