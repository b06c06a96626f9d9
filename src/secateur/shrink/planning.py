"""Choose the units that go: per group or over all groups, to a share of the units or to a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._errors import InfeasibleError, InvalidInputError
from secateur._names import Selector
from secateur._progress import task
from secateur.graph.coupling import Coupling
from secateur.graph.trace import Inputs
from secateur.shrink.budgets import Budget, fewest
from secateur.shrink.composing import fitting, kept_whole, plan_of
from secateur.shrink.coupled import coupling_for
from secateur.shrink.dead import plan_masked
from secateur.shrink.latency import LatencyTable, check_table
from secateur.shrink.ordering import Order, Scope, compete, ranked, take_turns
from secateur.shrink.overrides import Overrides, Terms, check_min_units, check_sparsity, terms_of
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.rounding import RoundTo, check_round_to, counts_left, multiple_of, needed_steps
from secateur.shrink.timing import measure_latency
from secateur.shrink.unit_scores import UnitScore, check_score, l2
from secateur.surgery.transaction import Holders

__all__ = ["plan_shrink", "shrink_"]

Ids = npt.NDArray[np.int64]

_SCORES = (
    "a function (model, coupling) -> one number a class, such as secateur.shrink.l1; those that need data are made "
    "first: secateur.shrink.activation_mean(run, loader)"
)
_UNSAID: dict[str, object] = {"score": l2, "scope": Scope.PER_GROUP, "min_units": 2, "by_row": True}


@task("planning")
def plan_shrink(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    sparsity: float | None = None,
    budget: Budget | None = None,
    score: UnitScore = l2,
    scope: Scope | str = Scope.PER_GROUP,
    round_to: RoundTo = None,
    min_units: int = 2,
    by_row: bool = True,
    ignore: Iterable[Selector] | Selector = (),
    overrides: Overrides | None = None,
    latency_table: LatencyTable | None = None,
    coupling: Coupling | None = None,
    masks: Mapping[str, Tensor] | None = None,
) -> ShrinkPlan:
    """Plan the removal of whole units: channels, neurons, heads.

    The plan depends on the arguments and the values of the model alone: not on the order in which modules were
    registered, nor on the global random state. Frozen parameters are planned like others, and stay frozen.

    Args:
        model: The model.
        example_inputs: A tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model.
        sparsity: Fraction of the units to remove, in [0, 1).
        budget: Instead: remove as few units as meet it.
        score: What a unit is worth; higher = kept.
        scope: Which units compete: ``"per_group"``, so that every group loses the same fraction of its units, or
            ``"global"``, where each score is divided by the mean (of magnitudes) of its group.
        round_to: In groups that lose units, the kept positions are a multiple of this number, if there were that many:
            of those that are possible the nearest to `sparsity`, or the first to meet `budget`. ``"auto"``: 16 for the
            channels of convolutions on a CPU, where that was measured to pay, and any number elsewhere.
        min_units: Units that stay in every group.
        by_row: Whether every head loses its own least columns where only their number must be the same in all heads;
            otherwise the same columns everywhere.
        ignore: Globs over dotted parameter names, or module types, whose sizes stay.
        overrides: What holds for single groups instead: ``{"encoder.*.mlp.fc1": 0.7, "stem": GroupOverride(…)}``. A
            name means the groups of its tensors' first dim, a layer's outputs; ``"fc.weight[1]"`` those of dim 1; a
            number, or several in a tuple, groups by their place in the coupling.
        latency_table: How long products take, for a budget on latency. It is measured if left out.
        coupling: The result of `analyze` for this model, if there is one already.
        masks: Instead of all from `sparsity` to `by_row`: remove exactly the units that these masks have emptied, see
            `plan_masked`.

    Returns:
        The plan. The model is unchanged. One that removes nothing, as only ``sparsity=0`` and a budget that is met
        already ask for, says so when printed.

    Raises:
        InvalidInputError: Neither or both of `sparsity` and `budget`, values out of range, arguments or overrides that
            contradict each other or mean nothing; or nothing in the model can be removed.
        InfeasibleError: The budget cannot be met with `min_units` units left in every group; or a fraction of the units
            is to go, and not one does: all must stay, or the fraction comes to less than half a unit.

        What the model's own forward raises on the example inputs comes through, with a note on how it was called.
    """
    if masks is not None:
        _refuse_beside_masks(
            sparsity=sparsity,
            budget=budget,
            score=score,
            scope=Scope(scope),
            round_to=round_to,
            min_units=min_units,
            by_row=by_row,
            overrides=overrides or None,
            latency_table=latency_table,
        )
        return plan_masked(model, example_inputs, masks, ignore=ignore, coupling=coupling)
    scope = Scope(scope)
    check_round_to(round_to)
    check_min_units(min_units)
    _check_target(sparsity, budget)
    check_score(score)
    check_table(latency_table)
    coupling = coupling_for(model, example_inputs, ignore=ignore, given=coupling)
    if not coupling.groups:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} can be removed.",
            kept_whole="; ".join(kept_whole(coupling)) or "no parameters",
        )
    terms = terms_of(model, coupling, overrides or {}, scope=scope, every=Terms(None, sparsity, min_units, round_to))
    if budget is not None and budget.latency is not None and latency_table is None:
        latency_table = measure_latency(model, coupling)
    scores = _scores(model, coupling, score)
    orders = _orders(model, coupling, scores, terms)
    units, refused = _chosen(coupling, orders, terms, budget, latency_table)
    plan = plan_of(model, coupling, units, latency_table=latency_table, by_row=scores if by_row else None)
    return replace(plan, kept_whole=(*plan.kept_whole, *refused))


def shrink_(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    sparsity: float | None = None,
    budget: Budget | None = None,
    score: UnitScore = l2,
    scope: Scope | str = Scope.PER_GROUP,
    round_to: RoundTo = None,
    min_units: int = 2,
    by_row: bool = True,
    ignore: Iterable[Selector] | Selector = (),
    overrides: Overrides | None = None,
    latency_table: LatencyTable | None = None,
    masks: Mapping[str, Tensor] | None = None,
    optimizer: Holders = None,
    ema: Holders = None,
    verify: bool = False,
) -> ShrinkPlan:
    """Remove whole units from a live model, with its optimizer and averages: `plan_shrink` and `ShrinkPlan.apply_`.

    The smaller model runs once on the example inputs. If an op then has a result of another shape, or is given another
    scalar, than was foreseen, everything is undone.

    Args:
        model: The model.
        example_inputs: As for `plan_shrink`, as all arguments up to `latency_table`.
        sparsity: Fraction of the units to remove.
        budget: What the smaller model may cost.
        score: What a unit is worth.
        scope: Which units compete.
        round_to: Of what the kept positions are a multiple.
        min_units: Units that stay in every group.
        by_row: Whether every head loses its own least columns.
        ignore: What keeps its sizes.
        overrides: What holds for single groups instead.
        latency_table: How long products take.
        masks: Instead of all these: remove the units that masks have emptied.
        optimizer: The optimizer that trains the model, or several.
        ema: What follows by name.
        verify: Whether the smaller model must give what the full one gives, run as if the same units were gone, or
            everything is undone; see `ShrinkPlan.verify`.

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
        scope=scope,
        round_to=round_to,
        min_units=min_units,
        by_row=by_row,
        ignore=ignore,
        overrides=overrides,
        latency_table=latency_table,
        masks=masks,
    )
    verified = example_inputs if verify else None
    plan.apply_(model, optimizer=optimizer, ema=ema, tried_on=example_inputs, verify=verified)
    return plan


def _refuse_beside_masks(**given: object) -> None:
    """Refuse what says which units go where masks say it.

    Raises:
        InvalidInputError: Something else than `_UNSAID` is given.
    """
    said = {name: value for name, value in given.items() if value is not None and value != _UNSAID.get(name)}
    if said:
        raise InvalidInputError(
            "masks say which units go, so nothing else can.",
            **{name: getattr(value, "__name__", value) for name, value in said.items()},
            fix="masks=… alone",
        )


def _refuse_idle(pools: Sequence[tuple[float | None, Order]], reasons: Sequence[str]) -> None:
    """Refuse to plan nothing where a fraction of the units is to go.

    Args:
        pools: Sparsities, and the units that they are of.
        reasons: Why the code does not let groups go.

    Raises:
        InfeasibleError: One is to go.
    """
    asked = [(sparsity, pool.size) for sparsity, pool in pools if sparsity]
    if not asked:
        return
    wanted = sum(round(sparsity * size) for sparsity, size in asked)
    why, fix = "that comes to less than half a unit everywhere", 'a larger sparsity, or scope="global"'
    if wanted:
        why = "min_units (2 if nothing is said), round_to or infinite scores keep them"
        fix = "min_units=1, a smaller round_to, or another score"
    raise InfeasibleError(
        "units are to go, and all of them must stay.",
        wanted=wanted,
        units=sum(size for _, size in asked),
        why="; ".join(reasons) or why,
        fix="" if reasons else fix,
    )


def _check_target(sparsity: float | None, budget: Budget | None) -> None:
    """Refuse anything but one target.

    Raises:
        InvalidInputError: There is none, there are two, or it is none.
    """
    if (sparsity is None) == (budget is None):
        raise InvalidInputError(
            "give either sparsity=… or budget=….",
            sparsity=sparsity,
            budget=budget,
            fix="sparsity=0.5, or budget=Budget(macs=0.5)",
        )
    if sparsity is not None:
        check_sparsity(sparsity)
    elif not isinstance(budget, Budget):
        raise InvalidInputError("a budget says what it limits.", budget=repr(budget), fix="budget=Budget(macs=0.5)")


def _scores(model: nn.Module, coupling: Coupling, score: UnitScore) -> npt.NDArray[np.float64]:
    """One score for every class."""
    try:
        given = score(model, coupling)
    except TypeError as error:
        raise InvalidInputError(
            f"score=… cannot be called as a score of units: {error}.",
            given=getattr(score, "__name__", score),
            fix=_SCORES,
        ) from error
    try:
        scores = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            "a unit score gives one number a class.", found=f"{given!r}"[:80], fix=_SCORES
        ) from error
    wanted = (len(coupling.solution.parents),)
    if scores.shape != wanted:
        raise InvalidInputError("a unit score gives one number a class.", found=scores.shape, wanted=wanted)
    return scores


def _orders(
    model: nn.Module, coupling: Coupling, scores: npt.NDArray[np.float64], terms: Sequence[Terms]
) -> dict[int, Order]:
    """In which order and steps the units of each group go, by number of the group, groups in an order of their own."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    needed = needed_steps(coupling)
    orders: dict[int, Order] = {}
    for number in sorted(range(len(terms)), key=lambda number: sorted(coupling.groups[number].footprint.items())):
        group, own = coupling.groups[number], terms[number]
        left = counts_left(
            len(group.units),
            min_units=own.min_units,
            multiple=multiple_of(group, own.round_to, device),
            step=needed.get(number, 1),
        )
        orders[number] = ranked(coupling, group, scores, left)
    return orders


def _chosen(
    coupling: Coupling,
    orders: Mapping[int, Order],
    terms: Sequence[Terms],
    budget: Budget | None,
    table: LatencyTable | None,
) -> tuple[list[int], list[str]]:
    """The units that go, and the reasons of groups that the code's own arithmetic does not allow to lose any.

    Where a group turns out to be one of these, the choice is made again without it, so that others make up for it.
    """
    asked = _pools(orders, terms)
    reasons: list[str] = []
    while True:
        units = _first(coupling, _pools(orders, terms), budget, table).tolist()
        _, refused = fitting(coupling, units)
        if not refused:
            if not units and budget is None:
                _refuse_idle(asked, reasons)
            return units, reasons
        reasons += [f"{group.name}: {why}" for group, why in refused]
        staying = {id(group) for group, _ in refused}
        orders = {number: order for number, order in orders.items() if id(coupling.groups[number]) not in staying}


def _pools(orders: Mapping[int, Order], terms: Sequence[Terms]) -> list[tuple[float | None, Order]]:
    """The sparsity of each pool, None where a budget decides, and the order of its units."""
    members: dict[tuple[object, float | None], list[Order]] = {}
    for number, order in orders.items():
        members.setdefault((terms[number].pool, terms[number].sparsity), []).append(order)
    return [(sparsity, compete(several)) for (_, sparsity), several in members.items()]


def _first(
    coupling: Coupling,
    pools: Sequence[tuple[float | None, Order]],
    budget: Budget | None,
    table: LatencyTable | None,
) -> Ids:
    """The units that go first in each pool: a fraction of them, or as few as meet the budget."""
    shares = [pool.first(round(sparsity * pool.size)) for sparsity, pool in pools if sparsity is not None]
    forced = np.concatenate([np.empty(0, dtype=np.int64), *shares])
    if budget is None:
        return forced
    return fewest(coupling, budget, forced, take_turns([pool for sparsity, pool in pools if sparsity is None]), table)
