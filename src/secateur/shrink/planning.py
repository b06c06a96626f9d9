"""Choose the units that go: per group or over all groups, to a share of the units or to a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from secateur._errors import InfeasibleError, InvalidInputError
from secateur._names import Selector
from secateur.graph.coupling import Coupling, Group, analyze, check_units
from secateur.graph.heads import can_be_freed
from secateur.graph.trace import Inputs, named_tensors
from secateur.shrink.choosing import Positions, refuse_empty, units_at
from secateur.shrink.plan import GroupPlan, NumberPlan, ShrinkPlan
from secateur.shrink.unit_scores import UnitScore, l2
from secateur.surgery.transaction import Holders

__all__ = ["Budget", "plan_of", "plan_shrink", "shrink_"]


@dataclass(frozen=True)
class Budget:
    """What the smaller model may cost, as a fraction in (0, 1] of what the model costs now.

    Args:
        macs: Multiply-accumulate operations on the example inputs.
        params: Parameters.
    """

    macs: float | None = None
    params: float | None = None

    def __post_init__(self) -> None:
        """Check the fractions."""
        given = [value for value in (self.macs, self.params) if value is not None]
        if not given or not all(0.0 < value <= 1.0 for value in given):
            raise InvalidInputError("a budget is a fraction in (0, 1] of what the model costs now.", budget=self)


def plan_shrink(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    sparsity: float | None = None,
    budget: Budget | None = None,
    score: UnitScore = l2,
    per_group: bool = True,
    min_units: int = 2,
    ignore: Iterable[Selector] | Selector = (),
    coupling: Coupling | None = None,
) -> ShrinkPlan:
    """Plan the removal of whole units: channels, neurons, heads.

    Args:
        model: The model.
        example_inputs: A tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model.
        sparsity: Fraction of the units to remove, in [0, 1).
        budget: Instead: remove as few units as meet it.
        score: What a unit is worth; higher = kept.
        per_group: Whether every group loses the same fraction of its units. Otherwise units of all groups compete,
            each score divided by the mean of its group.
        min_units: Units that stay in every group.
        ignore: Globs over dotted parameter names, or module types, whose sizes stay.
        coupling: The result of `analyze` for this model, if there is one already.

    Returns:
        The plan. The model is unchanged.

    Raises:
        InvalidInputError: Neither or both of `sparsity` and `budget`, or values out of range; or nothing in the model
            can be removed.
        InfeasibleError: The budget cannot be met with `min_units` units left in every group.
    """
    if (sparsity is None) == (budget is None):
        raise InvalidInputError(
            "give either sparsity=… or budget=….",
            sparsity=sparsity,
            budget=budget,
            fix="sparsity=0.5, or budget=Budget(macs=0.5)",
        )
    if sparsity is not None and not 0.0 <= sparsity < 1.0:
        raise InvalidInputError(
            "sparsity is the fraction of units to remove, in [0, 1).",
            sparsity=sparsity,
            fix="half of them: sparsity=0.5",
        )
    coupling = coupling or analyze(model, example_inputs, ignore=ignore)
    if not coupling.groups:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} can be removed.",
            kept_whole="; ".join(_whole(coupling)) or "no parameters",
        )
    order = _order(coupling, score(model, coupling), per_group=per_group, min_units=min_units)
    if sparsity is not None and per_group:
        return plan_of(model, coupling, _first_of_each(coupling, order, sparsity))
    if sparsity is not None:
        return plan_of(model, coupling, order[: round(sparsity * coupling.num_units)])
    return plan_of(model, coupling, _within(coupling, order, budget))


def shrink_(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    sparsity: float | None = None,
    budget: Budget | None = None,
    score: UnitScore = l2,
    per_group: bool = True,
    min_units: int = 2,
    ignore: Iterable[Selector] | Selector = (),
    optimizer: Holders = None,
    ema: Holders = None,
    verify: bool = False,
) -> ShrinkPlan:
    """Remove whole units from a live model, with its optimizer and averages: `plan_shrink` and `ShrinkPlan.apply_`.

    Args:
        model: The model.
        example_inputs: As for `plan_shrink`, as all arguments up to `ignore`.
        sparsity: Fraction of the units to remove.
        budget: What the smaller model may cost.
        score: What a unit is worth.
        per_group: Whether every group loses the same fraction.
        min_units: Units that stay in every group.
        ignore: What keeps its sizes.
        optimizer: The optimizer that trains the model, or several.
        ema: What follows by name.
        verify: Whether the plan is tried on a copy first, see `ShrinkPlan.verify`.

    Returns:
        The plan that was applied.

    Raises:
        SecateurError: Those of `plan_shrink` and `ShrinkPlan.apply_`. Nothing has been changed then.
    """
    plan = plan_shrink(
        model,
        example_inputs,
        sparsity=sparsity,
        budget=budget,
        score=score,
        per_group=per_group,
        min_units=min_units,
        ignore=ignore,
    )
    plan.apply_(model, optimizer=optimizer, ema=ema, verify=example_inputs if verify else None)
    return plan


def _order(coupling: Coupling, scores: npt.NDArray[np.float64], *, per_group: bool, min_units: int) -> list[int]:
    """Units in the order in which they go; those that must stay are left out."""
    keys: list[tuple[float, int, int]] = []
    for number, group in enumerate(coupling.groups):
        units = np.array(group.units)
        own = scores[units]
        if np.isnan(own).any():
            raise InvalidInputError(f"the scores of {group.name!r} are not all numbers.", scores=own[:8].tolist())
        units, own = units[np.isfinite(own)], own[np.isfinite(own)]
        if not len(units):
            continue
        ranked = units[np.lexsort((units, own))]
        removable = ranked[: max(0, min(len(ranked), len(group.units) - min_units))]
        mean = float(own.mean()) or 1.0
        for rank, unit in enumerate(removable.tolist()):
            key = (rank + 0.5) / len(ranked) if per_group else float(scores[unit]) / mean
            keys.append((key, number, unit))
    return [unit for _, _, unit in sorted(keys)]


def _first_of_each(coupling: Coupling, order: list[int], sparsity: float) -> list[int]:
    """The first units of every group, as many as the fraction comes to; a group that must keep more keeps more."""
    rank = {unit: number for number, unit in enumerate(order)}
    chosen: list[int] = []
    for group in coupling.groups:
        removable = sorted((unit for unit in group.units if unit in rank), key=rank.__getitem__)
        chosen += removable[: round(sparsity * len(group.units))]
    return chosen


def _within(coupling: Coupling, order: list[int], budget: Budget | None) -> list[int]:
    """The shortest beginning of the order whose removal meets the budget, found by bisection."""
    if budget is None:
        return []
    limits = (
        (coupling.macs, budget.macs),
        (coupling.num_parameters, budget.params),
    )
    wanted = [(cost, share * cost()) for cost, share in limits if share is not None]

    def meets(number: int) -> bool:
        return all(cost(order[:number]) <= limit for cost, limit in wanted)

    low, high = 0, len(order)
    if not meets(high):
        raise InfeasibleError(
            "the budget cannot be met.",
            budget=budget,
            least_macs=f"{coupling.macs(order) / max(1, coupling.macs()):.1%}",
            least_params=f"{coupling.num_parameters(order) / max(1, coupling.num_parameters()):.1%}",
            fix="a larger budget, min_units=1, or a shorter ignore list",
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle + 1, high)
    return order[:low]


def plan_of(
    model: nn.Module, coupling: Coupling, units: Iterable[int] = (), *, positions: Positions | None = None
) -> ShrinkPlan:
    """The plan that removes exactly these units, less those that the code's own arithmetic does not allow to go.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        units: Class numbers from the coupling's groups.
        positions: Positions of tensors that are to go as well, ``{("fc.weight", 0): [3, 5]}``; completed to whole
            units.

    Returns:
        The plan. The model is unchanged.

    Raises:
        InvalidInputError: Numbers that are no units; positions that cannot go, or do not make whole units; or nothing
            would be left of some dim.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> coupling = analyze(model, torch.zeros(1, 4))
        >>> plan_of(model, coupling, positions={("0.weight", 0): [1, 2]}).keep["2.weight"]
        {1: tensor([0, 3, 4, 5])}
    """
    named = units_at(model, coupling, positions or {})
    asked = list(dict.fromkeys([*units, *named]))
    check_units(coupling, asked)
    chosen, refused = _allowed(coupling, asked)
    if named and not set(named) <= set(chosen):
        raise InvalidInputError("these positions cannot go.", why="; ".join(f"{g.name}: {why}" for g, why in refused))
    positions_kept = coupling.positions(chosen)
    refuse_empty(positions_kept)
    keep: dict[str, dict[int, torch.Tensor]] = {}
    for (name, dim), kept in positions_kept.items():
        keep.setdefault(name, {})[dim] = torch.from_numpy(np.nonzero(kept)[0])
    tensors = named_tensors(model)
    going = set(chosen)
    return ShrinkPlan(
        keep,
        {name: tuple(tensors[name].shape) for name in keep},
        tuple(
            NumberPlan(
                attribute.label,
                attribute.name,
                attribute.index,
                attribute.value,
                value,
                attribute in coupling.sizing.pinned,
            )
            for attribute, value in coupling.attributes(chosen).items()
        ),
        tuple(
            GroupPlan(
                group.name,
                group.kind,
                len(group.units),
                len(set(group.units) - going),
                bool(coupling.mixes[list(group.units)].any()),
            )
            for group in coupling.groups
        ),
        (*_whole(coupling), *(f"{group.name}: {why}" for group, why in refused)),
        (coupling.num_parameters(), coupling.num_parameters(chosen)),
        (coupling.macs(), coupling.macs(chosen)),
        tuple(_freed(model, keep)),
    )


def _freed(model: nn.Module, changed: Iterable[str]) -> list[str]:
    """Attention modules with a tensor that changes."""
    names = set(changed)
    return [
        prefix
        for prefix, module in model.named_modules()
        if can_be_freed(module)
        and any((f"{prefix}.{name}" if prefix else name) in names for name, _ in module.named_parameters())
    ]


def _allowed(coupling: Coupling, units: list[int]) -> tuple[list[int], list[tuple[Group, str]]]:
    """The units, without groups whose removal would contradict an expression in the code."""
    refused: list[tuple[Group, str]] = []
    for _ in range(len(coupling.groups) + 1):
        gone = coupling.solution.removed(units)
        wrong = coupling.sizing.contradicted(lambda dim, gone=gone: int(coupling.solution.kept(dim, gone).sum()))  # type: ignore[misc]
        if not wrong:
            break
        dims = {id(axis) for tie in wrong for axis in tie.dim}
        classes = {
            int(c) for tie in wrong for axis in tie.dim if id(axis) in dims for c in coupling.solution.classes(axis)
        }
        culprits = [g for g in coupling.groups if classes & set(g.units) and set(g.units) & set(units)]
        if not culprits:
            culprits = [g for g in coupling.groups if set(g.units) & set(units)]
        for group in culprits:
            refused.append(
                (group, f"its size is computed in the code ({wrong[0].where}) in a way that does not follow")
            )
            units = [unit for unit in units if unit not in set(group.units)]
    return units, refused


def _whole(coupling: Coupling) -> list[str]:
    """What cannot be removed, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for kept in coupling.kept:
        reasons.setdefault(kept.why, []).append(f"{kept.name}[{kept.dim}]")
    return [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {why}"
        for why, names in reasons.items()
    ]
