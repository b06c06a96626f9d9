"""One shot: all at once."""

from __future__ import annotations

from secateur.schedules._linear import linear
from secateur.schedules._ramp import Ramp

__all__ = ["one_shot"]


def one_shot(initial: float, final: float, *, at_step: int) -> Ramp:
    """Jump from one value to another.

    Args:
        initial: The value before `at_step`.
        final: The value from `at_step` on.
        at_step: When it jumps, in optimizer steps.

    Returns:
        The schedule: a function of the step.

    Raises:
        InvalidInputError: The step is no whole number of at least 0, or a value is no finite number.

    Example:
        >>> schedule = one_shot(0.0, 0.8, at_step=100)
        >>> schedule(99), schedule(100)
        (0.0, 0.8)
    """
    return linear(initial, final, begin_step=at_step, end_step=at_step)
