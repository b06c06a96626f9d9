"""What a shrink schedule is on the way to: a share of the units of every group, or a share of what the model costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import nn

from secateur._errors import InvalidInputError, UnsupportedError
from secateur.graph.coupling import Coupling, Group
from secateur.shrink.budgets import Budget
from secateur.shrink.composing import plan_of
from secateur.shrink.ordering import ranked
from secateur.shrink.overrides import check_min_units
from secateur.shrink.plan import GroupPlan, ShrinkPlan
from secateur.shrink.planning import plan_shrink
from secateur.shrink.rounding import RoundTo, check_round_to, counts_left, multiple_of, needed_steps
from secateur.shrink.unit_scores import UnitScore

__all__ = ["Sizes", "Target", "target_of"]


@dataclass(frozen=True)
class Sizes:
    """How large a model is: units by the names and kinds of their groups, and what it costs."""

    units: dict[str, int]
    parameters: int
    macs: int

    @classmethod
    def of(cls, coupling: Coupling) -> Self:
        """Those of a model as it is."""
        units = _counted((_key(group), len(group.units)) for group in coupling.groups)
        return cls(units, coupling.num_parameters(), coupling.macs())

    @classmethod
    def after(cls, plan: ShrinkPlan) -> Self:
        """Those that a plan leaves."""
        units = _counted((_key(group), group.after) for group in plan.groups)
        return cls(units, plan.parameters[1], plan.macs[1])


def _key(group: Group | GroupPlan) -> str:
    """What a group is known by from cut to cut."""
    return f"{group.name} {group.kind}"


def _counted(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums by key."""
    total = Counter[str]()
    for key, number in pairs:
        total[key] += number
    return dict(total)


class Target(Protocol):
    """What is to be gone in the end."""

    def plan(self, model: nn.Module, coupling: Coupling, score: UnitScore, whole: Sizes, gone: float) -> ShrinkPlan:
        """The plan for a model as it is, that leaves what a fraction of the way leaves of the whole.

        Args:
            model: The model.
            coupling: Its coupling.
            score: What a unit is worth.
            whole: How large the model was at the beginning.
            gone: The fraction of the way.
        """

    def says(self, gone: float) -> str:
        """What is gone after a fraction of the way, in words."""


def target_of(sparsity: float | None, budget: Budget | None, min_units: int, round_to: RoundTo) -> Target:
    """The target that a user asks for.

    Raises:
        InvalidInputError: Neither or both are given, or a value is out of range.
        UnsupportedError: The budget limits the latency.
    """
    check_min_units(min_units)
    check_round_to(round_to)
    if sparsity is None and budget is not None:
        if budget.latency is not None:
            raise UnsupportedError("a schedule cannot follow a latency.", fix="budget=Budget(macs=…)")
        return _Costs(budget, min_units, round_to)
    if sparsity is None or budget is not None or not 0.0 < sparsity < 1.0:
        raise InvalidInputError(
            "give either final_sparsity=…, the fraction of units that is gone in the end, in (0, 1), or budget=….",
            final_sparsity=sparsity,
            budget=budget,
            fix="final_sparsity=0.8, or budget=Budget(macs=0.3)",
        )
    return _Units(sparsity, min_units, round_to)


@dataclass(frozen=True)
class _Units:
    """The same fraction of the units of every group."""

    sparsity: float
    min_units: int
    round_to: RoundTo

    def plan(self, model: nn.Module, coupling: Coupling, score: UnitScore, whole: Sizes, gone: float) -> ShrinkPlan:
        """Remove the lowest scores of every group, as many as the group still has too many."""
        scores = score(model, coupling)
        present, needed = Sizes.of(coupling).units, needed_steps(coupling)
        strange = sorted(present.keys() - whole.units.keys())
        if strange:
            raise InvalidInputError(f"the model had no group {strange[0]!r} before.", fix="make a new schedule")
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        going: list[int] = []
        for number, group in enumerate(coupling.groups):
            key = _key(group)
            wanted = whole.units[key] - round(self.sparsity * gone * whole.units[key])
            left = counts_left(
                len(group.units),
                min_units=self.min_units,
                multiple=multiple_of(group, self.round_to, device),
                step=needed.get(number, 1),
            )
            surplus = len(group.units) * (1.0 - wanted / present[key])
            going += ranked(coupling, group, scores, left).first(surplus).tolist()
        return plan_of(model, coupling, going)

    def says(self, gone: float) -> str:
        """The fraction of the units."""
        return f"{self.sparsity * gone:.1%} of the units gone"


@dataclass(frozen=True)
class _Costs:
    """What the model costs, in fractions of what it cost at the beginning."""

    budget: Budget
    min_units: int
    round_to: RoundTo

    def plan(self, model: nn.Module, coupling: Coupling, score: UnitScore, whole: Sizes, gone: float) -> ShrinkPlan:
        """Remove as few units as bring the costs down to where they should be by now."""
        macs = self._share(self.budget.macs, gone, whole.macs, coupling.macs())
        params = self._share(self.budget.params, gone, whole.parameters, coupling.num_parameters())
        return plan_shrink(
            model,
            (),
            budget=Budget(macs=macs, params=params),
            score=score,
            min_units=self.min_units,
            round_to=self.round_to,
            coupling=coupling,
        )

    @staticmethod
    def _share(final: float | None, gone: float, whole: int, now: int) -> float | None:
        """The part of the present costs that may stay."""
        return None if final is None else min(1.0, (1.0 - (1.0 - final) * gone) * whole / now)

    def says(self, gone: float) -> str:
        """The costs that are left."""
        costs = {"MACs": self.budget.macs, "parameters": self.budget.params}
        left = {name: 1.0 - (1.0 - final) * gone for name, final in costs.items() if final is not None}
        return ", ".join(f"{share:.1%} of the {name} left" for name, share in left.items())
