"""Which positions of a model's tensors go together: units, groups of like units, and what stays whole and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._names import Selector, match, owner_of
from secateur.graph.capture import tensors_in
from secateur.graph.labels import Dim, Dims
from secateur.graph.provenance import Attribute
from secateur.graph.sizing import Sizing, settle
from secateur.graph.solve import FIXED, Solution, solve
from secateur.graph.trace import Inputs, named_tensors, trace

__all__ = ["Coupling", "Group", "Kept", "analyze"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Units with the same footprint: the same dims of the same tensors, the same number of positions in each.

    Args:
        units: Class numbers of the units, in the order of their first positions.
        footprint: For every tensor and dim that a unit touches, how many positions it takes there.
        kind: What a unit is called: channels, neurons, heads, head dims, features.
    """

    units: tuple[int, ...]
    footprint: dict[tuple[str, int], int]
    kind: str

    @property
    def name(self) -> str:
        """The first tensor that it touches, with the dim."""
        tensor, dim = next(iter(self.footprint))
        return f"{tensor}[{dim}]"


@dataclass(frozen=True)
class Kept:
    """Positions of one dim of a parameter that stay, and why."""

    name: str
    dim: int
    positions: int
    why: str


@dataclass(frozen=True, eq=False)
class Coupling:
    """The result of `analyze`.

    Args:
        groups: Groups of units that can be removed.
        kept: Dims of parameters that have positions which cannot be removed, and why.
        dims: Labels of every parameter and buffer.
        solution: Classes of labels.
        sizing: What numbers in the code stand for.
        products: Dims of every matrix product and convolution.
        mixed: Classes (bool each) whose positions some op combines, so that zeroing them is not removing them.
        parameters: Names of the parameters among the tensors.
    """

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    dims: dict[str, Dims]
    solution: Solution
    sizing: Sizing
    products: tuple[tuple[Dim, ...], ...]
    mixed: npt.NDArray[np.bool_]
    parameters: frozenset[str]

    @cached_property
    def num_units(self) -> int:
        """Number of units in all groups."""
        return sum(len(group.units) for group in self.groups)

    @cached_property
    def mixes(self) -> npt.NDArray[np.bool_]:
        """Whether removing a class differs from zeroing it, since an op combines its positions; shape (classes,)."""
        found = self.mixed.copy()
        while True:
            above = self.solution.parents[found]
            above = np.unique(above[above != FIXED])
            if found[above].all():
                return found
            found[above] = True

    def units_at(self, name: str, dim: int, position: int) -> tuple[int, ...]:
        """The units each of which takes a position along; several where it is in a head and in a column of heads.

        Args:
            name: First dotted name of a parameter or buffer.
            dim: A dim of it.
            position: A position along that dim.

        Returns:
            Class numbers, ascending; none if the position stays.
        """
        found: set[int] = set()
        for one in self._classes_at(name, dim, position):
            if one != FIXED:
                found.update(_leaves(self.solution, np.array([one])).tolist())
        return tuple(sorted(found))

    def why_kept(self, name: str, dim: int, position: int) -> str:
        """Why a position stays."""
        classes = [one for one in self._classes_at(name, dim, position) if one != FIXED]
        return next(iter(_reasons(self.solution, np.array(classes, dtype=np.int64))), _UNKNOWN)

    def _classes_at(self, name: str, dim: int, position: int) -> list[int]:
        """The class of a position on each axis of a dim."""
        axes = self.dims[name][dim]
        places = np.unravel_index(position, [axis.size for axis in axes]) if axes else ()
        return [int(self.solution.classes(axis)[place]) for axis, place in zip(axes, places, strict=True)]

    def positions(self, units: Iterable[int]) -> dict[tuple[str, int], npt.NDArray[np.bool_]]:
        """Which positions of which dims stay when these units go: (tensor name, dim) -> bool mask, True = kept.

        Args:
            units: Class numbers.

        Returns:
            Only dims that lose something.
        """
        gone = self.solution.removed(units)
        found = {}
        for name, dims in self.dims.items():
            for d, dim in enumerate(dims):
                if dim:
                    kept = self.solution.kept(dim, gone)
                    if not kept.all():
                        found[name, d] = kept
        return found

    def attributes(self, units: Iterable[int]) -> dict[Attribute, int]:
        """New values of the numbers in the code when these units go; only those that change."""
        gone = self.solution.removed(units)
        values = self.sizing.values(lambda dim: int(self.solution.kept(dim, gone).sum()))
        return {attribute: value for attribute, value in values.items() if value != attribute.value}

    def macs(self, units: Iterable[int] = ()) -> int:
        """Multiply-accumulate operations of the example inputs' run when these units are gone."""
        gone = self.solution.removed(units)
        counts: dict[Dim, int] = {}
        total = 0
        for product in self.products:
            cost = 1
            for dim in product:
                if dim not in counts:
                    counts[dim] = int(self.solution.kept(dim, gone).sum()) if dim else 1
                cost *= counts[dim]
            total += cost
        return total

    def num_parameters(self, units: Iterable[int] = ()) -> int:
        """Number of parameters when these units are gone."""
        gone = self.solution.removed(units)
        total = 0
        for name in self.parameters:
            total += int(np.prod([int(self.solution.kept(d, gone).sum()) if d else 1 for d in self.dims[name]] or [1]))
        return total

    def __repr__(self) -> str:
        """A table of the groups, then what is kept whole and why."""
        lines = [
            f"Coupling: {self.num_units:,} units in {len(self.groups)} groups, {self.num_parameters():,} parameters"
        ]
        for group in self.groups:
            touched = ", ".join(f"{name}[{dim}]" for name, dim in list(group.footprint)[:4])
            more = f" and {len(group.footprint) - 4} more" if len(group.footprint) > 4 else ""
            lines.append(f"  {len(group.units):>6,} {group.kind:<10} {touched}{more}")
        reasons: dict[str, list[Kept]] = {}
        for kept in self.kept:
            reasons.setdefault(kept.why, []).append(kept)
        for why, several in reasons.items():
            names = ", ".join(f"{kept.name}[{kept.dim}]" for kept in several[:3])
            more = f" and {len(several) - 3} more" if len(several) > 3 else ""
            lines.append(f"  kept whole: {names}{more}: {why}")
        return "\n".join(lines)


def analyze(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    more_inputs: Sequence[Inputs] = (),
    prune_inputs: bool = False,
    prune_outputs: bool = False,
    ignore: Iterable[Selector] | Selector = (),
    interface: Callable[[Any], Sequence[Tensor]] = tensors_in,
) -> Coupling:
    """Find out which positions of a model's tensors must go together, by watching one run.

    Args:
        model: The model, in the mode in which it is used. It is left exactly as it was.
        example_inputs: A tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model.
        more_inputs: Further inputs that take other ways through the model.
        prune_inputs: Whether positions of the inputs may go.
        prune_outputs: Whether positions of the outputs may go.
        ignore: Globs over dotted parameter names, or module types, whose sizes stay.
        interface: Which tensors of the result keep their sizes; all of them if left out.

    Returns:
        The coupling: groups of units, and what is kept whole and why.

    Raises:
        InvalidInputError: A selector in `ignore` matches nothing.

        What the model's own forward raises comes through unchanged.
    """
    traced = trace(
        model,
        [example_inputs, *more_inputs],
        fixed_outputs=(lambda _: ()) if prune_outputs else interface,
        free_inputs=prune_inputs,
    )
    selectors = [ignore] if isinstance(ignore, str | type) else list(ignore)
    for name in match(model, selectors) if selectors else ():
        for dim in traced.dims.get(name, ()):
            traced.labels.block(dim, "it is to be ignored")
    sizing = settle(traced.labels, traced.ties, traced.values)
    solution = solve(traced.labels)
    parameters = frozenset(name for name, _ in model.named_parameters())
    mixed = np.zeros(len(solution.parents), dtype=bool)
    for dim, _ in traced.mixed:
        for axis in dim:
            classes = solution.classes(axis)
            mixed[classes[classes != FIXED]] = True
    groups = tuple(_groups(model, traced.dims, solution, parameters))
    return Coupling(
        groups,
        tuple(_kept(traced.dims, solution, parameters)),
        traced.dims,
        solution,
        sizing,
        tuple(traced.products),
        mixed,
        parameters,
    )


def _footprints(dims: Mapping[str, Dims], solution: Solution) -> tuple[Ids, Ids, Ids, list[tuple[str, int]]]:
    """How many positions each unit takes in each dim: (unit, number of the dim, positions), and the dims in order."""
    places = [(name, d) for name, several in dims.items() for d in range(len(several)) if several[d]]
    parts_of_unit, parts_of_place, counts = [], [], []
    for number, (name, d) in enumerate(places):
        dim = dims[name][d]
        total = int(np.prod([axis.size for axis in dim]))
        for axis in dim:
            pairs = _leaves(solution, solution.classes(axis))
            units, found = np.unique(pairs, return_counts=True)
            parts_of_unit.append(units)
            parts_of_place.append(np.full(len(units), number))
            counts.append(found * (total // axis.size))
    empty = np.empty(0, dtype=np.int64)
    unit, place, count = (np.concatenate([empty, *parts]) for parts in (parts_of_unit, parts_of_place, counts))
    return unit, place, count, places


def _leaves(solution: Solution, classes: Ids) -> Ids:
    """The units, one entry for each position, on which the positions of an axis depend."""
    found = [np.empty(0, dtype=np.int64)]
    pending = classes[classes != FIXED]
    for _ in range(64):  # products of products end soon; classes that depend on themselves are blocked
        if not len(pending):
            break
        found.append(pending[solution.is_unit[pending]])
        above = solution.parents[pending].reshape(-1)
        pending = above[above != FIXED]
        pending = pending[~solution.blocked[pending]]
    return np.concatenate(found)


def _groups(
    model: nn.Module, dims: Mapping[str, Dims], solution: Solution, parameters: frozenset[str]
) -> Iterable[Group]:
    """Units that touch a parameter, by footprint."""
    unit, place, count, places = _footprints(dims, solution)
    if not len(unit):
        return
    # a footprint is told by a sum of random numbers, one for each dim, times the positions there
    random = np.random.default_rng(0).integers(1, 2**62, size=len(places), dtype=np.uint64)
    marks = np.zeros(len(solution.parents), dtype=np.uint64)
    np.add.at(marks, unit, random[place] * count.astype(np.uint64))
    owns = np.zeros(len(solution.parents), dtype=bool)
    is_parameter = np.array([name in parameters for name, _ in places])
    owns[unit[is_parameter[place]]] = True
    order = np.lexsort((place, unit))
    unit, place, count = unit[order], place[order], count[order]
    starts = np.searchsorted(unit, np.arange(len(solution.parents) + 1))
    seen: dict[int, list[int]] = {}
    for one in np.unique(unit[owns[unit]]).tolist():
        seen.setdefault(int(marks[one]), []).append(one)
    for members in seen.values():
        span = slice(starts[members[0]], starts[members[0] + 1])
        footprint: dict[tuple[str, int], int] = {}
        for p, c in zip(place[span].tolist(), count[span].tolist(), strict=True):
            footprint[places[p]] = footprint.get(places[p], 0) + c
        yield Group(tuple(members), footprint, _kind(model, footprint, solution, members[0]))


def _kind(model: nn.Module, footprint: Mapping[tuple[str, int], int], solution: Solution, unit: int) -> str:
    """What a unit is called."""
    owners = [owner_of(model, name)[0] for name, _ in footprint]
    if any(isinstance(owner, nn.modules.conv._ConvNd) for owner in owners):
        return "channels"
    if min(footprint.values()) > 1:  # a head takes as many positions of every tensor as it is wide
        if (solution.parents[:, 0] == unit).any():
            return "heads"
        if (solution.parents[:, 1] == unit).any():
            return "head dims"
    tensors = named_tensors(model)
    inside = {dim for name, dim in footprint if tensors[name].dim() == 2}
    return "neurons" if inside == {0, 1} else "features"


def _kept(dims: Mapping[str, Dims], solution: Solution, parameters: frozenset[str]) -> Iterable[Kept]:
    """Dims of parameters with positions that stay."""
    removable = solution.removed(np.nonzero(solution.is_unit)[0].tolist())
    for name, several in dims.items():
        if name not in parameters:
            continue
        for d, dim in enumerate(several):
            for axis in dim:
                classes = solution.classes(axis)
                staying = classes[~removable[classes]] if not axis.is_fixed else classes[:0]
                if len(staying):
                    why = next(iter(_reasons(solution, np.unique(staying))), _UNKNOWN)
                    yield Kept(name, d, len(staying), why)


_UNKNOWN = "it goes with positions that stay"


def _reasons(solution: Solution, classes: Ids) -> Iterable[str]:
    """Why classes stay: their own reasons, those of what they are products of, then those of what is made of them."""
    pending = classes
    while len(pending):
        yield from (solution.why[c] for c in pending.tolist() if c in solution.why)
        above = np.unique(solution.parents[pending])
        pending = np.setdiff1d(above[above != FIXED], classes)
        classes = np.union1d(classes, pending)
    below = np.setdiff1d(np.nonzero(np.isin(solution.parents, classes).any(axis=1))[0], classes)
    below = below[solution.blocked[below]]
    yield from (solution.why[c] for c in below.tolist() if c in solution.why)


def check_units(coupling: Coupling, units: Iterable[int]) -> None:
    """Refuse numbers that are no units of the coupling."""
    known = {unit for group in coupling.groups for unit in group.units}
    strange = [unit for unit in units if unit not in known]
    if strange:
        raise InvalidInputError("these are no units of the model.", units=strange[:8])
