"""What linear, cubic and cosine schedules have in common: a value that goes from one number to another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from secateur._errors import InvalidInputError

__all__ = ["Ramp"]


@dataclass(frozen=True)
class Ramp:
    """A value that goes from one number to another between two steps, and keeps still before and after.

    Args:
        initial: The value up to `begin_step`, exactly.
        final: The value from `end_step` on, exactly.
        begin_step: The step after which it begins to move.
        end_step: The step at which it has arrived; where both are one step, the value jumps there.
        shape: Fraction of the way in time, in (0, 1) -> fraction of the way in value, in [0, 1].

    Raises:
        InvalidInputError: The end is before the begin, a step is not a whole number of at least 0, or a value is no
            finite number.

    Example:
        >>> square = Ramp(0.0, 0.8, begin_step=100, end_step=300, shape=lambda way: way**2)
        >>> [square(step) for step in (0, 100, 200, 300, 400)]
        [0.0, 0.0, 0.2, 0.8, 0.8]
    """

    initial: float
    final: float
    begin_step: int
    end_step: int
    shape: Callable[[float], float]

    def __post_init__(self) -> None:
        """Check that both steps and both values make sense."""
        _check_steps(self.begin_step, self.end_step)
        for name, value in (("initial", self.initial), ("final", self.final)):
            if not isinstance(value, Real) or not math.isfinite(value):
                raise InvalidInputError("a schedule goes from one finite number to another.", **{name: repr(value)})

    def __call__(self, step: int) -> float:
        """The value after this many optimizer steps."""
        if step >= self.end_step:
            return float(self.final)
        if step <= self.begin_step:
            return float(self.initial)
        way = self.shape((step - self.begin_step) / (self.end_step - self.begin_step))
        value = self.initial + (self.final - self.initial) * way
        low, high = sorted((self.initial, self.final))
        return float(min(max(value, low), high))  # rounding must not lead beyond the ends


def _check_steps(begin_step: int, end_step: int) -> None:
    """Refuse steps that are none, or that come in the wrong order."""
    steps = {"begin_step": begin_step, "end_step": end_step}
    for name, step in steps.items():
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise InvalidInputError(
                f"{name} must be a whole number of optimizer steps, 0 or more.", **{name: repr(step)}
            )
    if end_step < begin_step:
        raise InvalidInputError("a schedule cannot end before it begins.", fix="begin_step <= end_step", **steps)
