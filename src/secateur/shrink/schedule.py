"""Gradual shrinking in mid-training: a few cuts along a curve, each a plan applied in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from operator import index
from typing import Any

import torch
from torch import nn

from secateur._errors import InfeasibleError, InvalidInputError, SecateurError, ShapeError
from secateur._names import Selector, selectors_among
from secateur._progress import without_progress
from secateur._wrappers import refuse_model
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.trace import Inputs, named_tensors
from secateur.schedules import Curve, cubic
from secateur.shrink.budgets import Budget
from secateur.shrink.composing import kept_whole, plan_of
from secateur.shrink.cuts import cuts_along
from secateur.shrink.latency import LatencyTable
from secateur.shrink.ordering import Scope
from secateur.shrink.overrides import Overrides
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.rounding import RoundTo
from secateur.shrink.targets import Sizes, Target
from secateur.shrink.unit_scores import UnitScore, check_score, l2
from secateur.surgery.admission import copies_among, optimizers_among, refuse_unheld
from secateur.surgery.change import Change
from secateur.surgery.transaction import Holders

__all__ = ["ShrinkSchedule", "shrink_schedule"]

_RESUMING = "To go on with a model that has been cut already, give the state of its schedule: state=…"


def shrink_schedule(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    begin_step: int,
    end_step: int,
    final_sparsity: float | None = None,
    budget: Budget | None = None,
    num_cuts: int = 8,
    curve: Curve = cubic,
    score: UnitScore = l2,
    scope: Scope | str = Scope.PER_GROUP,
    round_to: RoundTo = None,
    min_units: int = 2,
    by_row: bool = True,
    ignore: Iterable[Selector] | Selector = (),
    overrides: Overrides | None = None,
    latency_table: LatencyTable | None = None,
    more_inputs: Sequence[Inputs] = (),
    optimizer: Holders = None,
    ema: Holders = None,
    verify: bool = False,
    state: Mapping[str, Any] | None = None,
) -> ShrinkSchedule:
    """Make a model smaller bit by bit while it trains: ``schedule.step()`` once after every ``optimizer.step()``.

    Eight cuts between 10 % and 60 % of the training leave time to recover. Late in a decaying schedule a cut wants the
    learning rate raised again. One cut is what `shrink_` does with the same arguments.

    To resume, bring the smaller model back with `load_`, make its optimizer and load its state, and give the state of
    the schedule as `state`. Or make all three as at the beginning, then load the model (with ``optimizer=…``) and both
    states.

    Args:
        model: The model, as large as it is to be at the beginning.
        example_inputs: As for `plan_shrink`, as all arguments from `score` to `latency_table`.
        begin_step: The first cut is made in this call of `ShrinkSchedule.step`, counted from 1.
        end_step: The last cut is made in this one; the others are evenly spaced between them.
        final_sparsity: Fraction of the units that is gone in the end, in [0, 1).
        budget: Instead: what the model may cost in the end, in fractions of what it costs now.
        num_cuts: Number of cuts. Where a group has fewer units to lose, some cuts take none of it.
        curve: Along what the fraction of the whole that is gone goes from 0 to 1, a function of the number of cuts.
        score: What a unit is worth; looked at anew for every cut. Scores that read ``.grad`` find the gradients of the
            step just made, if you call ``optimizer.zero_grad()`` later.
        scope: Which units compete.
        round_to: Of what the kept positions are a multiple.
        min_units: Units that stay in every group.
        by_row: Whether every head loses its own least columns.
        ignore: What keeps its sizes.
        overrides: What holds for single groups instead; their sparsities are those of the end. Which groups are meant
            is settled now.
        latency_table: How long products take, for a budget on latency. It is measured now if left out, and is part of
            the schedule's state.
        more_inputs: Further inputs that take other ways through the model, see `analyze`.
        optimizer: The optimizer that trains the model, or several.
        ema: What follows by name, see `ShrinkPlan.apply_`.
        verify: Whether every plan is tried on a copy first, see `ShrinkPlan.verify`.
        state: What `ShrinkSchedule.state_dict` returned, to go on there on a model as small as it was then.

    Returns:
        The schedule. The model is unchanged.

    Raises:
        InvalidInputError: Neither or both of `final_sparsity` and `budget`; values out of range; more cuts than steps;
            or nothing in the model can be removed, or would be.
        InfeasibleError: The budget cannot be met in the end, or units are to go, and all must stay.
        HolderError: The optimizer is that of another model. One that was not passed is found at the first cut.
        UnsupportedError: The model is compiled, or wrapped for several devices.

    Example:
        >>> import torch
        >>> model, x = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2)), torch.randn(8, 4)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> schedule = shrink_schedule(
        ...     model, x, begin_step=2, end_step=6, num_cuts=3, final_sparsity=0.5, optimizer=optimizer
        ... )
        >>> widths = []
        >>> for _ in range(7):
        ...     optimizer.zero_grad()
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        ...     plan = schedule.step()
        ...     widths.append(model[0].out_features)
        >>> widths
        [10, 6, 6, 5, 5, 5, 5]
    """
    check_score(score)
    cuts = cuts_along(curve, begin_step=begin_step, end_step=end_step, num_cuts=num_cuts)
    refuse_model(model)
    selectors = selectors_among(ignore)
    watch = partial(analyze, model, example_inputs, more_inputs=list(more_inputs), ignore=selectors)
    coupling = watch()
    if not coupling.groups:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} can be removed.",
            kept_whole="; ".join(kept_whole(coupling)) or "no parameters",
        )
    target = Target.of(
        model,
        coupling,
        sparsity=final_sparsity,
        budget=budget,
        scope=scope,
        round_to=round_to,
        min_units=min_units,
        by_row=by_row,
        overrides=overrides,
        table=latency_table,
    )
    following: dict[str, Any] = {"optimizer": optimizer, "ema": ema, "tried_on": example_inputs}
    following["verify"] = example_inputs if verify else None
    schedule = ShrinkSchedule(model, watch, coupling, cuts, target, score, following)
    if state is not None:
        schedule.load_state_dict(state)
    schedule.refuse_hopeless(coupling)
    return schedule


class ShrinkSchedule:
    """Cuts that are made as training goes on; made by `shrink_schedule`.

    Attributes:
        plans: The plans that this object has applied, in order.
        cuts: What fraction of the whole is gone after which step.
        num_steps: Number of steps so far.
    """

    def __init__(
        self,
        model: nn.Module,
        watch: Callable[[], Coupling],
        coupling: Coupling,
        cuts: Mapping[int, float],
        target: Target,
        score: UnitScore,
        following: Mapping[str, Any],
    ) -> None:
        self.plans: list[ShrinkPlan] = []
        self.cuts = dict(cuts)
        self.num_steps = 0
        self._model, self._watch, self._target, self._score, self._following = model, watch, target, score, following
        self._whole = Sizes.of(coupling, target.table)
        self._left = self._whole.units

    def step(self) -> ShrinkPlan | None:
        """Count one step of the optimizer, and make the cut that is due after it.

        A step that a ``GradScaler`` skips (gradients that are not finite, parameters that are) does not count when a
        cut is due: the cut waits for the next one.

        Returns:
            The plan that was applied, or None in the steps between the cuts. It removes nothing where all that could
            go has gone.

        Raises:
            SecateurError: Those of `plan_shrink` and `ShrinkPlan.apply_`; before the first cut also what would stop
                the last one. Nothing has been changed then, and the step does not count.
        """
        if self.num_steps + 1 not in self.cuts:
            self.num_steps += 1
            return None
        if _is_skipped(self._model):
            return None
        with without_progress():  # the training loop has bars of its own
            coupling = self._watch()
            plan = self._planned(coupling, self.cuts[self.num_steps + 1])
            plan.apply_(self._model, **self._following)
        self.plans.append(plan)
        self._left = self._target.left(plan, coupling, self._left)
        self.num_steps += 1
        return plan

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands, as plain numbers, strings, lists and dicts, which JSON can hold; without plans."""
        table = self._target.table
        return {
            "num_steps": self.num_steps,
            "whole": asdict(self._whole),
            "left": dict(self._left),
            "shapes": {name: list(tensor.shape) for name, tensor in named_tensors(self._model).items()},
            "latency_table": table and table.to_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another schedule stood, on a model that has the shapes which that one's had.

        Args:
            state: What `state_dict` returned.

        Raises:
            InvalidInputError: It is no such state, or one for other groups or another budget.
            ShapeError: The model has other shapes. Nothing has been changed.
        """
        try:
            whole, left, num_steps = Sizes(**state["whole"]), dict(state["left"]), index(state["num_steps"])
            table = state["latency_table"]
            shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
            target = replace(self._target, table=table and LatencyTable.from_dict(table))
            fits = whole.units.keys() >= target.terms.keys() and whole.costs.keys() >= self._whole.costs.keys()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError("this is no state of a shrink schedule.", fix="schedule.state_dict()") from error
        if not fits:
            raise InvalidInputError(
                "the state is that of a schedule for other groups or another budget.",
                fix="make the schedule with the same arguments on the model as it was at the beginning, then load_ the "
                "smaller model and load the state",
            )
        self._refuse_shapes(shapes)
        self._whole, self._left, self._target, self.num_steps = whole, left, target, num_steps

    def refuse_hopeless(self, coupling: Coupling) -> None:
        """Refuse what the last cut could not do, or could not take along; called before the first one.

        Args:
            coupling: The coupling of the model as it is.

        Raises:
            InvalidInputError: Nothing would be removed.
            InfeasibleError: The budget cannot be met, or units are to go, and all must stay.
            HolderError: What was passed is no optimizer, or that of another model.
        """
        if self.num_steps >= min(self.cuts):
            return
        try:
            plan = self._target.plan(self._model, coupling, l2, self._whole, self._left, 1.0)
            if not plan.keep:
                units = sum(self._whole.units.values())
                raise InvalidInputError("nothing would be removed in the end.", units=units, fix="final_sparsity=0.8")
        except SecateurError as error:
            error.add_note(_RESUMING)
            raise
        tensors = named_tensors(self._model)
        changes = [Change(name, tensors[name]) for name in plan.keep]
        refuse_unheld(optimizers_among(self._following["optimizer"]), changes)
        copies_among(self._following["ema"])

    def __repr__(self) -> str:
        """The cuts, those made marked, and how many units there were and are."""
        units, left = sum(self._whole.units.values()), sum(self._left.values())
        lines = [f"ShrinkSchedule: step {self.num_steps:,}, {left:,} of {units:,} units left"]
        for step, gone in self.cuts.items():
            lines.append(f"  {'x' if step <= self.num_steps else ' '} step {step:>7,}  {self._target.says(gone)}")
        return "\n".join(lines)

    def _planned(self, coupling: Coupling, gone: float) -> ShrinkPlan:
        """The plan for a fraction of the way; at first also tried for the last cut, by the same scores."""
        plan = partial(self._target.plan, self._model, coupling, cache(self._score), self._whole, self._left)
        if self.num_steps < min(self.cuts):
            plan(1.0)
        try:
            return plan(gone)
        except InfeasibleError:
            if self._target.budget is not None:
                raise
            return plan_of(self._model, coupling)

    def _refuse_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a state for another model than the present one.

        Raises:
            ShapeError: Some tensor has another shape.
        """
        present = {name: tuple(tensor.shape) for name, tensor in named_tensors(self._model).items()}
        differing = [name for name in {**present, **shapes} if present.get(name) != shapes.get(name)]
        if differing:
            raise ShapeError(
                f"the model has not the shapes that it had when the state was made: {differing[0]!r} differs.",
                saved=shapes.get(differing[0], "no such tensor"),
                found=present.get(differing[0], "no such tensor"),
                fix="bring the smaller model back first: secateur.save(model, path), secateur.load_(model, path)",
            )


def _is_skipped(model: nn.Module) -> bool:
    """Whether gradients are not finite though the parameters are, as after a step that a ``GradScaler`` has skipped."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return not all(map(_is_finite, gradients)) and all(map(_is_finite, model.parameters()))


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all entries are finite."""
    dense = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return bool(dense.isfinite().all())
