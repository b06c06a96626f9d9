"""Units with the same footprint are a group: channels, neurons, heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from secateur.graph.labels import Axis, Dims
from secateur.graph.naming import kind_of
from secateur.graph.solve import FIXED, Solution

__all__ = ["Group", "groups_of", "leaves"]

Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class Group:
    """Units with the same footprint: the same dims of the same tensors, the same number of positions in each.

    Args:
        units: Class numbers of the units, in the order of their first positions.
        footprint: For every tensor and dim that a unit touches, how many positions it takes there.
        kind: What a unit is called, see `secateur.graph.naming`.
    """

    units: tuple[int, ...]
    footprint: dict[tuple[str, int], int]
    kind: str

    @property
    def name(self) -> str:
        """The first tensor that it touches, with the dim."""
        tensor, dim = next(iter(self.footprint))
        return f"{tensor}[{dim}]"


def _footprints(dims: Mapping[str, Dims], solution: Solution) -> tuple[Ids, Ids, Ids, list[tuple[str, int]]]:
    """How many positions each unit takes in each dim: (unit, number of the dim, positions), and the dims in order."""
    places = [(name, d) for name, several in dims.items() for d in range(len(several)) if several[d]]
    parts_of_unit, parts_of_place, counts = [], [], []
    known: dict[Axis, tuple[Ids, Ids]] = {}
    for number, (name, d) in enumerate(places):
        dim = dims[name][d]
        total = int(np.prod([axis.size for axis in dim]))
        for axis in dim if total else ():  # a tensor may hold nothing
            if axis.root not in known:
                known[axis.root] = np.unique(leaves(solution, solution.classes(axis)), return_counts=True)
            units, found = known[axis.root]
            parts_of_unit.append(units)
            parts_of_place.append(np.full(len(units), number))
            counts.append(found * (total // axis.size))
    empty = np.empty(0, dtype=np.int64)
    unit, place, count = (np.concatenate([empty, *parts]) for parts in (parts_of_unit, parts_of_place, counts))
    return unit, place, count, places


def leaves(solution: Solution, classes: Ids) -> Ids:
    """The units, one entry for each position, on which the positions of an axis depend."""
    found = [np.empty(0, dtype=np.int64)]
    pending = classes[classes != FIXED]
    for _ in range(64):  # products of products end soon; classes that depend on themselves are blocked
        if not len(pending):
            break
        is_unit = solution.is_unit[pending]
        found.append(pending[is_unit])
        if is_unit.all():
            break
        above = solution.parents[pending].reshape(-1)
        pending = above[above != FIXED]
        pending = pending[~solution.blocked[pending]]
    return np.concatenate(found)


def groups_of(
    model: nn.Module, dims: Mapping[str, Dims], solution: Solution, weights: frozenset[str]
) -> Iterable[Group]:
    """Units that touch the weight of a layer, by footprint; a row of a table of tokens is none."""
    unit, place, count, places = _footprints(dims, solution)
    if not len(unit):
        return
    # a footprint is told by a sum of random numbers, one for each dim, times the positions there; as many heads as
    # columns in each have the same one, so there are numbers for rows and for columns as well
    random = np.random.default_rng(0).integers(1, 2**62, size=len(places) + 2, dtype=np.uint64)
    owns = np.zeros(len(solution.parents), dtype=bool)
    is_weight = np.array([name in weights for name, _ in places])
    owns[unit[is_weight[place]]] = True
    order = np.argsort(unit, kind="stable")  # places are in order already
    unit, place, count = unit[order], place[order], count[order]
    first = np.flatnonzero(np.diff(unit, prepend=-1))
    marks = np.zeros(len(solution.parents), dtype=np.uint64)
    marks[unit[first]] = np.add.reduceat(random[place] * count.astype(np.uint64), first)
    for factors, number in zip(solution.parents.T, random[len(places) :], strict=True):
        is_factor = np.zeros(len(marks), dtype=bool)
        is_factor[factors[factors != FIXED]] = True
        marks[is_factor] += number
    starts = np.append(0, np.cumsum(np.bincount(unit, minlength=len(solution.parents))))

    seen: dict[int, list[int]] = {}
    owned = np.flatnonzero(owns)
    for one, mark in zip(owned.tolist(), marks[owned].tolist(), strict=True):
        seen.setdefault(mark, []).append(one)
    footprints: dict[int, dict[tuple[str, int], int]] = {}
    for mark, members in seen.items():
        span = slice(starts[members[0]], starts[members[0] + 1])
        footprint = footprints.setdefault(mark, {})
        for p, c in zip(place[span].tolist(), count[span].tolist(), strict=True):
            footprint[places[p]] = footprint.get(places[p], 0) + c
    whole = {mark: {p: c * len(seen[mark]) for p, c in footprint.items()} for mark, footprint in footprints.items()}
    for mark, members in seen.items():
        kind = kind_of(model, solution, members[0], footprints[mark], lambda one: whole.get(int(marks[one]), {}))
        yield Group(tuple(members), footprints[mark], kind)
