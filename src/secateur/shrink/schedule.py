"""Gradual shrinking in mid-training: a few cuts along a curve, each a plan applied in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import nn

from secateur._errors import InvalidInputError
from secateur._names import Selector
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.trace import Inputs
from secateur.shrink.budgets import Budget
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.rounding import RoundTo
from secateur.shrink.targets import Sizes, Target, target_of
from secateur.shrink.unit_scores import UnitScore, l2
from secateur.surgery.transaction import Holders

__all__ = ["ShrinkSchedule", "cubic", "linear", "shrink_schedule"]


def cubic(way: float) -> float:
    r"""Much at first, less and less later: :math:`1 - (1 - t)^3` of the whole after a fraction t of the cuts.

    References:
        Zhu and Gupta, To Prune, or Not to Prune (2017), eq. 1.
    """
    return 1.0 - (1.0 - way) ** 3


def linear(way: float) -> float:
    """The same in every cut: t of the whole after a fraction t of the cuts."""
    return way


def shrink_schedule(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    begin_step: int,
    end_step: int,
    final_sparsity: float | None = None,
    budget: Budget | None = None,
    num_cuts: int = 8,
    shape: Callable[[float], float] = cubic,
    score: UnitScore = l2,
    round_to: RoundTo = None,
    min_units: int = 2,
    ignore: Iterable[Selector] | Selector = (),
    optimizer: Holders = None,
    ema: Holders = None,
) -> ShrinkSchedule:
    """Make a model smaller bit by bit while it trains: ``schedule.step()`` once after every ``optimizer.step()``.

    Eight cuts between 10 % and 60 % of the training leave time to recover. Late in a decaying schedule a cut wants the
    learning rate raised again.

    Args:
        model: The model, as large as it is to be at the beginning. For a resumed training load the smaller model first
            (`load_`), then make the schedule, then load its state.
        example_inputs: As for `plan_shrink`.
        begin_step: The first cut is made in this call of `ShrinkSchedule.step`, counted from 1.
        end_step: The last cut is made in this one; the others are evenly spaced between them.
        final_sparsity: Fraction of the units of every group that is gone in the end, in (0, 1).
        budget: Instead: what the model may cost in the end, in fractions of what it costs now.
        num_cuts: Number of cuts.
        shape: Fraction of the cuts that are made -> fraction of the whole that is gone; ends at 1.
        score: What a unit is worth; looked at anew for every cut. Scores that read ``.grad`` find the gradients of the
            step just made, if you call ``optimizer.zero_grad()`` later.
        round_to: As for `plan_shrink`: the nearest number of kept positions that is a multiple of this.
        min_units: Units that stay in every group.
        ignore: Globs over dotted parameter names, or module types, whose sizes stay.
        optimizer: The optimizer that trains the model, or several.
        ema: What follows by name, see `ShrinkPlan.apply_`.

    Returns:
        The schedule. The model is unchanged.

    Raises:
        InvalidInputError: Neither or both of `final_sparsity` and `budget`; values out of range; more cuts than steps;
            or nothing in the model can be removed.
        InfeasibleError: The budget cannot be met.

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
    cuts = _cuts(begin_step, end_step, num_cuts, shape)
    target = target_of(final_sparsity, budget, min_units, round_to)
    selectors = [ignore] if isinstance(ignore, str | type) else list(ignore)
    return ShrinkSchedule(model, example_inputs, cuts, target, score, selectors, (optimizer, ema))


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
        example_inputs: Inputs,
        cuts: Mapping[int, float],
        target: Target,
        score: UnitScore,
        ignore: list[Selector],
        holders: tuple[Holders, Holders],
    ) -> None:
        self.plans: list[ShrinkPlan] = []
        self.cuts = dict(cuts)
        self.num_steps = 0
        self._model, self._inputs, self._score, self._ignore = model, example_inputs, score, ignore
        self._target, self._holders = target, holders
        coupling = self._analyze()
        self._whole = self._now = Sizes.of(coupling)

    def step(self) -> ShrinkPlan | None:
        """Count one step of the optimizer, and make the cut that is due after it.

        Returns:
            The plan that was applied, or None in the steps between the cuts.

        Raises:
            SecateurError: Those of `plan_shrink` and `ShrinkPlan.apply_`. Nothing has been changed then, and the step
                does not count.
        """
        if not self.num_steps:  # not earlier: a model about to be resumed is smaller than its schedule's whole
            self._plan(self._analyze(), l2, 1.0)
        if self.num_steps + 1 not in self.cuts:
            self.num_steps += 1
            return None
        plan = self._plan(self._analyze(), self._score, self.cuts[self.num_steps + 1])
        optimizer, ema = self._holders
        plan.apply_(self._model, optimizer=optimizer, ema=ema, tried_on=self._inputs)
        self.plans.append(plan)
        self._now = Sizes.after(plan)
        self.num_steps += 1
        return plan

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands, as plain numbers, strings and dicts, which JSON can hold. Plans are not in it."""
        return {"num_steps": self.num_steps, "whole": asdict(self._whole), "now": asdict(self._now)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another schedule stood, on a model that has the sizes which that one's had.

        Args:
            state: What `state_dict` returned.

        Raises:
            InvalidInputError: It is no such state, or the model has other sizes. Nothing has been changed.
        """
        try:
            whole, now, num_steps = Sizes(**state["whole"]), Sizes(**state["now"]), int(state["num_steps"])
        except (KeyError, TypeError) as error:
            raise InvalidInputError("this is no state of a shrink schedule.", fix="schedule.state_dict()") from error
        present = Sizes.of(self._analyze())
        if present.units != now.units:
            differing = [key for key in {**now.units, **present.units} if now.units.get(key) != present.units.get(key)]
            raise InvalidInputError(
                f"the model has not the sizes that it had when the state was made: {differing[0]!r} differs.",
                saved=now.units.get(differing[0], 0),
                found=present.units.get(differing[0], 0),
                fix="bring the smaller model back first: secateur.save(model, path), secateur.load_(model, path)",
            )
        self._whole, self._now, self.num_steps = whole, now, num_steps

    def __repr__(self) -> str:
        """The cuts, those made marked, and how many units there were and are."""
        units, left = sum(self._whole.units.values()), sum(self._now.units.values())
        lines = [f"ShrinkSchedule: step {self.num_steps:,}, {left:,} of {units:,} units left"]
        for step, gone in self.cuts.items():
            lines.append(f"  {'x' if step <= self.num_steps else ' '} step {step:>7,}  {self._target.says(gone)}")
        return "\n".join(lines)

    def _plan(self, coupling: Coupling, score: UnitScore, gone: float) -> ShrinkPlan:
        """The plan for a fraction of the way."""
        return self._target.plan(self._model, coupling, score, self._whole, gone)

    def _analyze(self) -> Coupling:
        """The coupling of the model as it is now.

        Raises:
            InvalidInputError: It has no groups.
        """
        coupling = analyze(self._model, self._inputs, ignore=self._ignore)
        if not coupling.groups:
            raise InvalidInputError(f"nothing in {type(self._model).__name__} can be removed.", coupling=coupling)
        return coupling


def _cuts(begin_step: int, end_step: int, num_cuts: int, shape: Callable[[float], float]) -> dict[int, float]:
    """What fraction of the whole is gone after which step.

    Raises:
        InvalidInputError: The cuts do not fit, or the shape is none.
    """
    if not 1 <= begin_step <= end_step or not 1 <= num_cuts <= end_step - begin_step + 1:
        raise InvalidInputError(
            "the cuts must fit between the first and the last step, at most one a step.",
            begin_step=begin_step,
            end_step=end_step,
            num_cuts=num_cuts,
            fix="begin_step=100, end_step=600, num_cuts=8",
        )
    gone = [float(shape((cut + 1) / num_cuts)) for cut in range(num_cuts)]
    if sorted(gone) != gone or gone[0] < 0.0 or abs(gone[-1] - 1.0) > 1e-9:
        raise InvalidInputError("the shape must rise from 0 to 1.", at_the_cuts=[round(value, 4) for value in gone])
    steps = np.round(np.linspace(begin_step, end_step, num_cuts)).astype(int).tolist()
    return dict(zip(steps, gone, strict=True))
