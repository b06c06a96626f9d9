"""What patterns ask of shapes, and of the units that they are given."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["check_dim", "check_kept", "is_count", "lacks_dim", "undivided"]


def check_kept(kept: Tensor, num_units: int, shape: torch.Size) -> None:
    """Refuse a choice of units that is not one bool a unit of a tensor of this shape."""
    if kept.dtype != torch.bool:
        raise InvalidInputError("kept units must be bool, True = kept.", dtype=kept.dtype)
    if kept.shape != (num_units,):
        raise ShapeError(
            "kept units must be 1-D, one for each unit of the tensor.",
            kept=tuple(kept.shape),
            units=num_units,
            shape=tuple(shape),
        )


def is_count(value: object) -> bool:
    """Whether it is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_dim(dim: object, kind: str) -> None:
    """Refuse a dim that is no whole number."""
    if not isinstance(dim, Integral) or isinstance(dim, bool):
        raise InvalidInputError(
            "dim must be a whole number; negative ones count from the end.", pattern=kind, dim=repr(dim)
        )


def lacks_dim(shape: torch.Size, dim: int) -> str:
    """That there is no such dim, or nothing."""
    return "" if -len(shape) <= dim < len(shape) else f"there is no dim {dim}"


def undivided(shape: torch.Size, dim: int, divisor: int) -> str:
    """That the size of a dim is no multiple of a divisor, or nothing."""
    return f"size {shape[dim]} of dim {dim} is not divisible by {divisor}" if shape[dim] % divisor else ""
