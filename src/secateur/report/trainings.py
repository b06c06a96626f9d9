"""The parts of a report that are about a training: its curves, and what happened to masks and widths on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from secateur._errors import InvalidInputError
from secateur.dst import History
from secateur.report.figures import Curves, Line, Section, Table, table
from secateur.report.units import Cell, Unit, shown
from secateur.shrink import ShrinkSchedule

__all__ = ["Events", "Points", "curve_figures", "events_of", "mask_curves", "points_of", "training_sections"]

Points = Sequence[float] | Sequence[tuple[int, float]] | Mapping[int, float]
"""A curve: a value for each step from 1 on, or pairs of step and value, or values by step."""

Events = list[tuple[int, str]]

_CHANGES: tuple[tuple[str, str, Unit], ...] = (
    ("sparsity", "sparsity", "fraction"),
    ("churn", "exchanged", "fraction"),
    ("ever_kept", "ever kept", "fraction"),
    ("overlap_with_start", "kept from the start", "fraction"),
    ("num_dead_rows", "outputs without a weight", "count"),
    ("num_dead_columns", "inputs without a weight", "count"),
)


def training_sections(
    histories: Sequence[History], schedules: Sequence[ShrinkSchedule], curves: Mapping[str, Points]
) -> Iterator[Section]:
    """The parts of a report on a training.

    Args:
        histories: What happened to masks.
        schedules: What was cut.
        curves: What else there is to show, such as the loss, by name.

    Raises:
        InvalidInputError: A curve is none.
    """
    events = events_of(histories, schedules)
    if curves:
        text = "Marked are the steps at which masks changed or units were removed." if events else ""
        yield Section("The training", tuple(curve_figures(curves, events)), text)
    for history in histories:
        if len(history):
            yield Section("Masks over the training", (mask_curves(history), _changes(history)))
    for schedule in schedules:
        yield Section("Cuts of the training", (_cuts(schedule),))


def points_of(name: str, points: Points) -> list[tuple[int, float]]:
    """A curve as pairs of step and value, by step.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        given = points.items() if isinstance(points, Mapping) else enumerate(points, 1)
        pairs = [_pair(step, value) for step, value in given]
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the curve {name!r} is none: {error}.",
            fix="a list of numbers, of (step, number), or a dict {step: number}",
        ) from error
    return sorted(pairs, key=lambda pair: pair[0])


def _pair(step: Any, value: Any) -> tuple[int, float]:
    """One point, by its place or by the step that stands beside it."""
    if isinstance(value, tuple | list):
        step, value = value
    return int(step), float(value)


def curve_figures(curves: Mapping[str, Points], events: Events) -> Iterator[Curves]:
    """A chart for each curve, as their numbers may be of any size, with the events of the training.

    Raises:
        InvalidInputError: A curve is none.
    """
    found = {str(name): points_of(name, points) for name, points in curves.items()}
    steps = [step for points in found.values() for step, _ in points] + [step for step, _ in events]
    span = (min(steps), max(steps)) if steps else None
    for name, points in found.items():
        yield Curves(name, (Line.of(name, points),), tuple(events), steps=span)


def events_of(histories: Sequence[History], schedules: Sequence[ShrinkSchedule]) -> Events:
    """The steps at which something was pruned, and what; the start of a history is none."""
    found = [(step, f"{gone} of what is to go is gone") for s in schedules for step, gone in _made(s)]
    for history in histories:
        for change in history[1:]:
            found.append(
                (
                    change.step,
                    f"{shown(change.sparsity, 'fraction')} zeros, {shown(change.churn, 'fraction')} exchanged",
                )
            )
    return sorted(found)


def mask_curves(history: History) -> Curves:
    """Sparsity, exchange and exploration over the steps."""
    lines = (
        Line.of(label, [(change.step, getattr(change, name)) for change in history]) for name, label, _ in _CHANGES[:3]
    )
    events = tuple(events_of([history], []))
    return Curves(
        "Masked entries, exchanged ones, and those that have been kept at some time", tuple(lines), events, "fraction"
    )


def _changes(history: History) -> Table:
    """The same as a table, and more."""
    rows = [[change.step, *(getattr(change, name) for name, _, _ in _CHANGES)] for change in history]
    columns: list[tuple[str, Unit]] = [("step", "count"), *((label, unit) for _, label, unit in _CHANGES)]
    return table("Changes of the masks", columns, rows)


def _made(schedule: ShrinkSchedule) -> list[tuple[int, str]]:
    """The cuts that were made: the step, and what fraction of all that is to go is gone."""
    return [(step, shown(gone, "fraction")) for step, gone in schedule.cuts.items() if step <= schedule.num_steps]


def _cuts(schedule: ShrinkSchedule) -> Table:
    """Every cut, made or to come, with the plan if this schedule has made it."""
    made = [step for step in schedule.cuts if step <= schedule.num_steps]
    plans = dict(zip(reversed(made), reversed(schedule.plans), strict=False))
    rows: list[list[Cell]] = []
    for step, gone in schedule.cuts.items():
        plan = plans.get(step)
        costs: list[Cell] = [None] * 6
        if plan is not None:
            units = [sum(getattr(group, when) for group in plan.groups) for when in ("before", "after")]
            costs = [*units, *plan.parameters, *plan.macs]
        rows.append([step, gone, "yes" if step in made else "no", *costs])
    columns: list[tuple[str, Unit]] = [("step", "count"), ("of what is to go", "fraction"), ("made", "")]
    for label in ("units", "parameters", "MACs"):
        columns += [(f"{label} before", "count"), (f"{label} after", "count")]
    return table("Cuts", columns, rows)
