"""Schedules that may only rise."""

from __future__ import annotations

from collections.abc import Iterable

from secateur._errors import InvalidInputError
from secateur.schedules._registry import Schedule

__all__ = ["check_rising"]


def check_rising(schedule: Schedule, steps: Iterable[int], *, what: str = "the value") -> None:
    """Refuse a schedule that falls from one of some steps to the next.

    Args:
        schedule: The schedule.
        steps: The steps at which it will be asked, in order.
        what: What its value is, for the error message.

    Raises:
        InvalidInputError: It falls, or gives NaN.

    Example:
        >>> from secateur.schedules import linear
        >>> check_rising(linear(0.0, 0.9, begin_step=0, end_step=100), range(0, 200, 10))
    """
    last, before = -float("inf"), 0
    for step in steps:
        value = schedule(step)
        if not value >= last:
            raise InvalidInputError(
                f"{what} may only rise, and this schedule lets it fall.",
                **{f"at_step_{before}": last, f"at_step_{step}": value},
                fix="an initial value that is not above the final one",
            )
        last, before = value, step
