"""Constant: the same at every step."""

from __future__ import annotations

from secateur.schedules._one_shot import one_shot
from secateur.schedules._ramp import Ramp

__all__ = ["constant"]


def constant(value: float) -> Ramp:
    """Stay where it is.

    Args:
        value: The value.

    Returns:
        The schedule: a function of the step.

    Raises:
        InvalidInputError: The value is no finite number.

    Example:
        >>> constant(0.3)(1_000_000)
        0.3
    """
    return one_shot(value, value, at_step=0)
