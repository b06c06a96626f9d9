"""What a shrink schedule is on the way to: shares of the units of its groups, or of what the model costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling, Group
from secateur.shrink.budgets import Budget, costs_of
from secateur.shrink.composing import plan_of
from secateur.shrink.latency import LatencyTable
from secateur.shrink.ordering import Scope
from secateur.shrink.overrides import (
    GroupOverride,
    GroupSelector,
    Overrides,
    Terms,
    check_min_units,
    check_sparsity,
    terms_of,
)
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.planning import plan_shrink
from secateur.shrink.rounding import RoundTo, check_round_to
from secateur.shrink.timing import measure_latency
from secateur.shrink.unit_scores import UnitScore

__all__ = ["Sizes", "Target"]

_TITLES = {"macs": "MACs", "params": "parameters", "latency": "latency"}
_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class Sizes:
    """How large a model is.

    Args:
        units: Units by the names and kinds of their groups.
        costs: What the model costs, by the names of the fields of `Budget`.
    """

    units: dict[str, int]
    costs: dict[str, float]

    @classmethod
    def of(cls, coupling: Coupling, table: LatencyTable | None) -> Self:
        """Those of a model as it is."""
        costs = {name: cost(()) for name, cost in costs_of(coupling, table).items()}
        return cls(_counted((_key(group), len(group.units)) for group in coupling.groups), costs)


def _key(group: Group) -> str:
    """What a group is known by from cut to cut."""
    return f"{group.name} {group.kind}"


def _counted(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums by key."""
    total = Counter[str]()
    for key, number in pairs:
        total[key] += number
    return dict(total)


@dataclass(frozen=True)
class Target:
    """What is to be gone in the end.

    Args:
        terms: What holds for each group, by its name and kind; groups of one pool compete with one another.
        sparsity: Fraction of the units that goes where nothing else is said; None with a budget.
        budget: What the model may cost, in fractions of what it cost at the beginning.
        by_row: Whether every head loses its own least columns.
        table: How long products take, for a budget on latency.
    """

    terms: dict[str, Terms]
    sparsity: float | None
    budget: Budget | None
    by_row: bool
    table: LatencyTable | None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        coupling: Coupling,
        *,
        sparsity: float | None,
        budget: Budget | None,
        scope: Scope | str,
        round_to: RoundTo,
        min_units: int,
        by_row: bool,
        overrides: Overrides | None,
        table: LatencyTable | None,
    ) -> Self:
        """The target that a user asks for; arguments as for `plan_shrink`.

        Raises:
            InvalidInputError: Neither or both of `sparsity` and `budget` are given, a value is out of range, or an
                override means nothing.
        """
        scope = Scope(scope)
        check_min_units(min_units)
        check_round_to(round_to)
        if (sparsity is None) == (budget is None):
            raise InvalidInputError(
                "give either final_sparsity=…, the fraction of units that is gone in the end, or budget=….",
                final_sparsity=sparsity,
                budget=budget,
                fix="final_sparsity=0.8, or budget=Budget(macs=0.3)",
            )
        if sparsity is not None:
            check_sparsity(sparsity)
        elif not isinstance(budget, Budget):
            raise InvalidInputError("a budget says what it limits.", budget=repr(budget), fix="budget=Budget(macs=0.3)")
        every = Terms(None, sparsity, min_units, round_to)
        found = terms_of(model, coupling, overrides or {}, scope=scope, every=every)
        terms: dict[str, Terms] = {}
        for number, (group, own) in enumerate(zip(coupling.groups, found, strict=True)):
            key = _key(group)
            terms.setdefault(key, replace(own, pool=key) if own.pool == number else own)
        if budget is not None and budget.latency is not None and table is None:
            table = measure_latency(model, coupling)
        return cls(terms, sparsity, budget, by_row, table)

    def plan(
        self, model: nn.Module, coupling: Coupling, score: UnitScore, whole: Sizes, left: Mapping[str, int], gone: float
    ) -> ShrinkPlan:
        """The plan for a model as it is, that leaves what a fraction of the way leaves of the whole.

        Args:
            model: The model.
            coupling: Its coupling.
            score: What a unit is worth.
            whole: How large the model was at the beginning.
            left: Units by group after the cut before.
            gone: The fraction of the way.

        Raises:
            InvalidInputError: The model has a group that it had not at the beginning.
            InfeasibleError: The budget cannot be met, or nothing can go that would have to.
        """
        keys = self._keys(coupling, left)
        if not keys:
            return plan_of(model, coupling)
        return plan_shrink(
            model,
            (),
            sparsity=None if self.budget else 0.0,
            budget=self._budget(coupling, whole, gone),
            score=score,
            by_row=self.by_row,
            overrides=self._overrides(coupling, keys, whole, gone),
            latency_table=self.table,
            coupling=coupling,
        )

    def left(self, plan: ShrinkPlan, coupling: Coupling, left: Mapping[str, int]) -> dict[str, int]:
        """Units by group that a plan for a coupling leaves; of groups that had one unit, which are none, one is left.

        Raises:
            InvalidInputError: The model has a group that it had not at the beginning.
        """
        after = (group.after for group in plan.groups)
        return dict.fromkeys(left, 1) | _counted(zip(self._keys(coupling, left), after, strict=True))

    def _keys(self, coupling: Coupling, left: Mapping[str, int]) -> list[str]:
        """What each group was known by at the beginning: columns are no columns of heads when one head is left.

        Raises:
            InvalidInputError: One was not there.
        """
        keys = [_key(group) for group in coupling.groups]
        for number, group in enumerate(coupling.groups):
            if keys[number] not in self.terms:
                same = [key for key in self.terms if key.startswith(f"{group.name} ") and key not in keys]
                found = next((key for key in same if left.get(key) == len(group.units)), None)
                if found is None:
                    raise InvalidInputError(
                        f"the model had no group {keys[number]!r} before.", fix="make a new schedule"
                    )
                keys[number] = found
        return keys

    def says(self, gone: float) -> str:
        """What is gone, or left, after a fraction of the way, in words."""
        if self.budget is None:
            return f"{(self.sparsity or 0.0) * gone:.1%} of the units gone"
        left = {title: _way(getattr(self.budget, name), gone) for name, title in _TITLES.items()}
        return ", ".join(f"{share:.1%} of the {title} left" for title, share in left.items() if share is not None)

    def _budget(self, coupling: Coupling, whole: Sizes, gone: float) -> Budget | None:
        """The budget in fractions of what the model costs now."""
        if self.budget is None:
            return None
        shares: dict[str, float] = {}
        for name, now in Sizes.of(coupling, self.table).costs.items():
            share = _way(getattr(self.budget, name), gone)
            if share is not None:
                shares[name] = _share(share * whole.costs[name], now)
        return Budget(**shares)

    def _overrides(self, coupling: Coupling, keys: Sequence[str], whole: Sizes, gone: float) -> Overrides:
        """What holds for each group and pool now, with the fraction of its present units that is still too much."""
        present = _counted((key, len(group.units)) for key, group in zip(keys, coupling.groups, strict=True))
        pools: dict[tuple[object, float | None], list[str]] = {}
        for key, own in self.terms.items():
            pools.setdefault((own.pool, own.sparsity), []).append(key)
        overrides: dict[GroupSelector, float | GroupOverride] = {}
        for (pool, sparsity), members in pools.items():
            numbers = tuple(number for number, key in enumerate(keys) if key in members)
            is_alone = pool in members
            share = (
                None if sparsity is None else _surplus(present, {k: whole.units[k] for k in members}, sparsity * gone)
            )
            for number in numbers:
                own = self.terms[keys[number]]
                overrides[number] = GroupOverride(
                    share if is_alone else None, own.min_units, own.round_to, Scope.PER_GROUP if is_alone else None
                )
            if numbers and not is_alone:
                overrides[numbers] = GroupOverride(share, scope=Scope.GLOBAL)
        return overrides


def _surplus(present: Mapping[str, int], whole: Mapping[str, int], sparsity: float) -> float:
    """Fraction of the present units of a pool that is too much; of a group that is not there any more, one is left.

    Args:
        present: Units by group, of all groups.
        whole: Units by group at the beginning, of those of the pool.
        sparsity: Fraction of the latter that is to be gone.
    """
    before = sum(whole.values())
    surplus = sum(present.get(key, 1) for key in whole) - (before - round(sparsity * before))
    return min(_BELOW_ONE, max(0, surplus) / max(1, sum(present.get(key, 0) for key in whole)))


def _share(allowed: float, now: float) -> float:
    """The fraction, at most 1, of which `now` times it is no less than what is allowed, whatever way it is rounded."""
    if allowed >= now:
        return 1.0
    share = allowed / now
    return share if share * now >= allowed else math.nextafter(share, math.inf)


def _way(final: float | None, gone: float) -> float | None:
    """What is left after a fraction of the way from 1 to the final share."""
    return None if final is None else (1.0 - gone) + final * gone
