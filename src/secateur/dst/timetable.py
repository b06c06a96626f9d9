"""When masks change, and how much: pure functions of the optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from secateur._errors import InvalidInputError
from secateur.allocation._sparsity import check_sparsity
from secateur.schedules import CURVES, Curve, Schedule, check_rising, constant, cosine

__all__ = ["Timetable", "approach", "decaying", "timetable"]


@dataclass(frozen=True)
class Timetable:
    """The steps after which masks change, and what they change by.

    Args:
        sparsity: Step -> fraction of zeros from then on.
        drop_fraction: Step -> fraction of the kept units that are exchanged for as many others.
        every: Steps from one change to the next; None if masks never change.
        begin_step: The step of the first change; that of 0 would be before any step, and is left out.
        end_step: None is made after this step.
    """

    sparsity: Schedule
    drop_fraction: Schedule
    every: int | None = None
    begin_step: int = 0
    end_step: int = 0

    @property
    def is_gradual(self) -> bool:
        """Whether the sparsity is another one in the end than in the beginning."""
        return self.sparsity(0) != self.sparsity(self.end_step)

    def steps(self) -> range:
        """The steps after which masks change; whether there is anything to change is another question."""
        return _steps(self.every, self.begin_step, self.end_step)

    def is_due(self, step: int) -> bool:
        """Whether something changes after this step."""
        return step in self.steps() and (self.is_gradual or self.drop_fraction(step) > 0.0)

    def following(self, step: int) -> int | None:
        """The first step after this one after which something changes; None if nothing will."""
        return next((due for due in self.steps() if due > step and self.is_due(due)), None)


def timetable(
    sparsity: float | Schedule,
    drop_fraction: float | Schedule,
    *,
    every: int | None,
    begin_step: int,
    end_step: int,
) -> Timetable:
    """Check what a user asks for, at every step at which it will be asked.

    Raises:
        InvalidInputError: Steps that are none or come in the wrong order, or none among them for a change; a value out
            of range, a sparsity that falls.
    """
    _check_steps(every, begin_step, end_step)
    if not callable(drop_fraction):
        _check_fraction(drop_fraction, 0)
    found = Timetable(
        sparsity if callable(sparsity) else _constant_sparsity(sparsity),
        drop_fraction if callable(drop_fraction) else constant(drop_fraction),
        every,
        begin_step,
        end_step,
    )
    if every is not None and not found.steps():
        raise InvalidInputError(
            "masks would never change: the first change is due after the last step for changes.",
            first_change=begin_step or every,
            end_step=end_step,
            fix="a smaller every=, a larger end_step=, or secateur.dst.Static",
        )
    steps = [0, *found.steps()]
    for step in steps:
        check_sparsity(found.sparsity(step))
    for step in steps[1:]:
        _check_fraction(found.drop_fraction(step), step)
    check_rising(found.sparsity, steps, what="sparsity")
    return found


def approach(curve: Curve, initial: float, final: float, *, every: int, begin_step: int, end_step: int) -> Schedule:
    """The sparsity that goes along a curve and has arrived when the last change is made.

    Raises:
        InvalidInputError: A curve that is none, such as its name; steps that are none or come in the wrong order, or
            too few of them for one change.
    """
    if not callable(curve):
        raise InvalidInputError(
            "a curve is a function that makes a schedule.",
            curve=repr(curve),
            there_are=", ".join(f"secateur.schedules.{name}" for name in CURVES),
        )
    _check_steps(every, begin_step, end_step)
    steps = _steps(every, begin_step, end_step)
    if not steps or (steps[-1] == begin_step and initial != final):
        raise InvalidInputError(
            "there is no step at which the sparsity could rise.",
            begin_step=begin_step,
            end_step=end_step,
            every=every,
            fix="end_step >= begin_step + every",
        )
    return curve(initial, final, begin_step=begin_step, end_step=steps[-1])


def decaying(drop_fraction: float | Schedule, end_step: int) -> Schedule:
    """A fraction that decays along a cosine until the last step; a schedule stays as it is."""
    if callable(drop_fraction):
        return drop_fraction
    _check_steps(None, 0, end_step)
    _check_fraction(drop_fraction, 0)
    return cosine(drop_fraction, 0.0, begin_step=0, end_step=end_step)


def _steps(every: int | None, begin_step: int, end_step: int) -> range:
    """The steps after which masks change."""
    return range(begin_step or every, end_step + 1, every) if every else range(0)


def _constant_sparsity(sparsity: float) -> Schedule:
    """The same sparsity at every step."""
    check_sparsity(sparsity)
    return constant(sparsity)


def _check_steps(every: int | None, begin_step: int, end_step: int) -> None:
    """Refuse steps that are no whole numbers, or that come in the wrong order."""
    for name, value, least in (("every", every, 1), ("begin_step", begin_step, 0), ("end_step", end_step, 0)):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidInputError(
                f"{name} must be a whole number of optimizer steps, {least} or more.", **{name: repr(value)}
            )
    if end_step < begin_step:
        raise InvalidInputError(
            "masks cannot stop to change before they begin.",
            begin_step=begin_step,
            end_step=end_step,
            fix="begin_step <= end_step",
        )


def _check_fraction(fraction: float, step: int) -> None:
    """Refuse a fraction of weights to exchange that is none."""
    if not isinstance(fraction, Real) or not 0.0 <= fraction <= 1.0:
        raise InvalidInputError(
            "drop_fraction must be in [0, 1]: the fraction of the kept weights that are exchanged.",
            drop_fraction=repr(fraction),
            at_step=step,
            fix="drop_fraction=0.3",
        )
