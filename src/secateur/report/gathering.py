"""The one way to a report: give what there is, get a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._progress import task
from secateur.dst import History
from secateur.report.comparisons import comparison_sections
from secateur.report.diagnoses import findings_section
from secateur.report.document import Report
from secateur.report.figures import Section, table
from secateur.report.plans import plan_sections
from secateur.report.sparsity import sparsity_sections, zeros_of
from secateur.report.trainings import Points, training_sections
from secateur.report.units import Cell
from secateur.shrink import GrowPlan, LatencyTable, ShrinkPlan, ShrinkSchedule
from secateur.shrink.latency import check_table

__all__ = ["check_plan", "gather", "masks_of", "runs_of", "write_html"]

_FIX = "plan=secateur.plan_shrink(model, example_inputs, sparsity=0.5)"


@task("gathering figures")
def gather(
    *,
    plan: ShrinkPlan | GrowPlan | None = None,
    model: nn.Module | None = None,
    masks: Mapping[str, Tensor] | None = None,
    training: object = None,
    curves: Mapping[str, Points] | None = None,
    comparison: object = None,
    findings: object = None,
    latency_table: LatencyTable | None = None,
    facts: Mapping[str, Cell] | None = None,
    title: str = "",
) -> Report:
    """Put a report together from whatever there is.

    Args:
        plan: What was or will be removed, or added.
        model: The model, before or after the plan: its name, and the zeros that it has.
        masks: Bool masks by dotted name, True = kept; those of `model` if left out.
        training: A training of `secateur.dst`, its history, a `ShrinkSchedule`, or several of these.
        curves: Curves of the training by name, ``{"loss": losses}``: a value for each step from 1 on, pairs of step and
            value, or values by step. Of more than 2,000 points the extremes are kept.
        comparison: The result of `secateur.profile`, a model that `secateur.compress` has made or its report, or
            several of these.
        findings: What `secateur.diagnose` has found.
        latency_table: How long products take, to say in which layers of the plan's model the time goes.
        facts: How it was made, as what you would note down: ``{"input": "1×3×224×224", "seed": 0}``.
        title: The heading of the page.

    Returns:
        The report: a value with `write_html`, `to_html` and `to_dict`.

    Raises:
        InvalidInputError: Nothing is given, or something is not what it should be.

    Example:
        >>> import torch
        >>> import secateur
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> report = gather(plan=secateur.plan_shrink(model, torch.ones(1, 4), sparsity=0.5), model=model)
        >>> [section.title for section in report.sections][:2]
        ['Summary', 'Widths before and after']
    """
    given = (plan, model, masks, training, curves, comparison, findings)
    if all(each is None for each in given):
        raise InvalidInputError("there is nothing to report.", fix=_FIX)
    if plan is not None:
        check_plan(plan)
    if model is not None and not isinstance(model, nn.Module):
        raise InvalidInputError(f"{type(model).__name__} is no model.", fix="model=model")
    check_table(latency_table)
    _check_facts(facts)
    sections = list(_sections(plan, model, masks, training, curves or {}, comparison, findings, latency_table))
    if not sections:
        sections = [Section("Summary", (), "No weight of the model is zero.")]
    if facts:
        sections.insert(1, _made(facts))
    return Report(title or _title(model), tuple(sections))


def write_html(
    path: str | PathLike[str],
    *,
    plan: ShrinkPlan | GrowPlan | None = None,
    model: nn.Module | None = None,
    masks: Mapping[str, Tensor] | None = None,
    training: object = None,
    curves: Mapping[str, Points] | None = None,
    comparison: object = None,
    findings: object = None,
    latency_table: LatencyTable | None = None,
    facts: Mapping[str, Cell] | None = None,
    title: str = "",
) -> Path:
    """Write a report as one HTML file that needs no network: `gather` and `Report.write_html`.

    Args:
        path: Where to. What is there is replaced, by the whole page or not at all.
        plan: As for `gather`, as all others.
        model: The model.
        masks: Its masks.
        training: What happened to masks and widths.
        curves: Curves of the training.
        comparison: What was measured.
        findings: What the doctor has found.
        latency_table: How long products take.
        facts: How it was made.
        title: The heading.

    Returns:
        The path.

    Raises:
        InvalidInputError: Those of `gather`, or the folder does not exist. Nothing is written then.
    """
    report = gather(
        plan=plan,
        model=model,
        masks=masks,
        training=training,
        curves=curves,
        comparison=comparison,
        findings=findings,
        latency_table=latency_table,
        facts=facts,
        title=title,
    )
    return report.write_html(path)


def _sections(
    plan: ShrinkPlan | GrowPlan | None,
    model: nn.Module | None,
    masks: Mapping[str, Tensor] | None,
    training: object,
    curves: Mapping[str, Points],
    comparison: object,
    findings: object,
    latency_table: LatencyTable | None,
) -> Iterator[Section]:
    """The parts, those that say most first."""
    histories, schedules = runs_of(training)
    if plan is not None:
        yield from plan_sections(plan, model, latency_table)
    yield from training_sections(histories, schedules, curves)
    yield from sparsity_sections(zeros_of(masks or masks_of(training), model, histories))
    for each in _several(comparison):
        yield from comparison_sections(each)
    if findings is not None:
        yield findings_section(findings)


def _made(facts: Mapping[str, Cell]) -> Section:
    """How it was made."""
    return Section("How it was made", (table("Facts", [("what", ""), ("is", "")], facts.items()),))


def _check_facts(facts: object) -> None:
    """Refuse what are no facts.

    Raises:
        InvalidInputError: They are not words or numbers by name.
    """
    is_right = isinstance(facts, Mapping) and all(
        isinstance(name, str) and isinstance(value, str | int | float) for name, value in facts.items()
    )
    if facts is not None and not is_right:
        raise InvalidInputError("facts are words or numbers by name.", facts=repr(facts)[:80], fix='facts={"seed": 0}')


def check_plan(plan: ShrinkPlan | GrowPlan) -> ShrinkPlan | GrowPlan:
    """A plan as it is.

    Raises:
        InvalidInputError: It is none.
    """
    if not isinstance(plan, ShrinkPlan | GrowPlan):
        raise InvalidInputError(f"{type(plan).__name__} is no plan.", fix=_FIX)
    return plan


def runs_of(training: object) -> tuple[list[History], list[ShrinkSchedule]]:
    """The histories of masks and the schedules of cuts in what was given as a training.

    Raises:
        InvalidInputError: Something is neither.
    """
    histories: list[History] = []
    schedules: list[ShrinkSchedule] = []
    several = [training] if isinstance(training, History) else _several(training)
    for each in several:
        history = getattr(each, "history", each)
        if isinstance(each, ShrinkSchedule):
            schedules.append(each)
        elif isinstance(history, History):
            histories.append(history)
        else:
            raise InvalidInputError(
                f"{type(each).__name__} is no training that a report could be made of.",
                fix="training=secateur.RigL(…), its history, or secateur.shrink_schedule(…)",
            )
    return histories, schedules


def masks_of(training: object) -> Mapping[str, Tensor] | None:
    """The masks of the first training that holds some."""
    held = (getattr(each, "masks", None) for each in _several(training) if not isinstance(each, History))
    return next((masks for masks in held if isinstance(masks, Mapping)), None)


def _several(given: object) -> list[object]:
    """One thing, or those of a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _title(model: nn.Module | None) -> str:
    """A heading that says what the report is about."""
    return "secateur report" if model is None else f"secateur report: {type(model).__name__}"
