"""What every pattern asks of the units it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError

__all__ = ["check_kept"]


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
