"""What a schedule is, and the table of curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from secateur.schedules._cosine import cosine
from secateur.schedules._cubic import cubic
from secateur.schedules._linear import linear

__all__ = ["CURVES", "Curve", "Schedule"]

Schedule = Callable[[int], float]
"""A pure function: optimizer steps that have been made -> a value. A run that is resumed needs the step only."""


class Curve(Protocol):
    """Makes the schedule that leads from one value to another."""

    def __call__(self, initial: float, final: float, *, begin_step: int, end_step: int) -> Schedule:
        """The schedule between two steps, exact at both ends."""
        ...


CURVES: dict[str, Curve] = {"linear": linear, "cubic": cubic, "cosine": cosine}
"""The curves by name; the contract tests run over this table."""
