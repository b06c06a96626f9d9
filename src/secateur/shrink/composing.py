"""From units to a plan: what goes with them, which numbers follow, and what the code's own arithmetic forbids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from secateur._errors import InvalidInputError
from secateur._passes import without_collections
from secateur.graph.coupling import Coupling, Group, check_units
from secateur.shrink.alignment import aligned
from secateur.shrink.choosing import Positions, refuse_empty, units_at
from secateur.shrink.coupled import refuse_coupling
from secateur.shrink.fit import Fit
from secateur.shrink.latency import LatencyTable, check_table
from secateur.shrink.numbers import planned_numbers
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.plan_parts import GroupPlan
from secateur.shrink.rows import chosen_by_row
from secateur.shrink.twins import freed_among

__all__ = ["fitting", "kept_whole", "plan_of"]


@without_collections()
def plan_of(
    model: nn.Module,
    coupling: Coupling,
    units: Iterable[int] = (),
    *,
    positions: Positions | None = None,
    latency_table: LatencyTable | None = None,
    by_row: npt.NDArray[np.float64] | None = None,
) -> ShrinkPlan:
    """The plan that removes exactly these units, less those that the code's own arithmetic does not allow to go.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        units: Class numbers from the coupling's groups.
        positions: Positions of tensors that are to go as well, ``{("fc.weight", 0): [3, 5]}``; completed to whole
            units.
        latency_table: How long products take, if the plan is to say what it comes to.
        by_row: Scores of all classes, by which every head loses its own least columns where only their number is
            common to all heads; without them, the same ones everywhere.

    Returns:
        The plan. The model is unchanged.

    Raises:
        InvalidInputError: Numbers that are no units; positions that cannot go, or do not make whole units; nothing
            would be left of some dim; or no model, coupling or table.
        ShapeError: The coupling is that of another model, or of this one before it changed.

    Example:
        >>> from secateur.graph import analyze
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> coupling = analyze(model, torch.zeros(1, 4))
        >>> plan_of(model, coupling, positions={("0.weight", 0): [1, 2]}).keep["2.weight"]
        {1: tensor([0, 3, 4, 5])}
    """
    refuse_coupling(model, coupling)
    check_table(latency_table)
    named = units_at(model, coupling, positions or {})
    asked = list(dict.fromkeys([*units, *named]))
    check_units(coupling, asked)
    chosen, refused = fitting(coupling, asked)
    if named and not set(named) <= set(chosen):
        raise InvalidInputError("these positions cannot go.", why="; ".join(f"{g.name}: {why}" for g, why in refused))
    positions_kept = coupling.positions(chosen if by_row is None else chosen_by_row(coupling, chosen, by_row))
    refuse_empty(positions_kept)
    keep: dict[str, dict[int, torch.Tensor]] = {}
    with _disable_current_modes():  # positions are real ones, also where the model's tensors are fake
        for (name, dim), kept in positions_kept.items():
            keep.setdefault(name, {})[dim] = torch.from_numpy(np.nonzero(kept)[0])
    going = set(chosen)
    seconds = latency_table.predictor(coupling) if latency_table is not None else None
    return ShrinkPlan(
        keep,
        Fit.of(model, keep),
        planned_numbers(coupling.sizing, coupling.counter(chosen)) if keep else (),
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
        (*kept_whole(coupling), *(f"{group.name}: {why}" for group, why in refused)),
        (coupling.num_parameters(), coupling.num_parameters(chosen)),
        (coupling.macs(), coupling.macs(chosen)),
        freed_among(model, keep),
        activation_bytes=(coupling.activation_bytes(), coupling.activation_bytes(chosen)),
        latency=None if seconds is None else (seconds(()), seconds(chosen)),
        coupling=coupling,
        units=tuple(chosen),
    )


def fitting(coupling: Coupling, units: list[int]) -> tuple[list[int], list[tuple[Group, str]]]:
    """The units, without those that the code's arithmetic or the counts that ops need do not allow to go."""
    refused: list[tuple[Group, str]] = []
    while True:  # both only leave units out
        left, because = _allowed(coupling, units)
        left, unaligned = aligned(coupling, left)
        refused += (*because, *unaligned)
        if len(left) == len(units):
            return left, refused
        units = left


def _allowed(coupling: Coupling, units: list[int]) -> tuple[list[int], list[tuple[Group, str]]]:
    """The units, without groups whose removal would contradict an expression in the code."""
    refused: list[tuple[Group, str]] = []
    for _ in range(len(coupling.groups) + 1):
        wrong = coupling.sizing.contradicted(coupling.counter(units))
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


def kept_whole(coupling: Coupling) -> list[str]:
    """What cannot be removed, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for kept in coupling.kept:
        reasons.setdefault(kept.why, []).append(f"{kept.name}[{kept.dim}]")
    return [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {why}"
        for why, names in reasons.items()
    ]
