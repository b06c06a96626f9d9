"""Which positions of a model's tensors go together: units, groups of like units, and what stays whole and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._names import Selector, match, selectors_among
from secateur._passes import without_collections
from secateur._progress import task
from secateur.graph.capture import tensors_in
from secateur.graph.costs import Activation, Counter, Product, activation_bytes, macs
from secateur.graph.grouping import Group, groups_of, leaves
from secateur.graph.keeping import UNKNOWN_REASON, Kept, kept_of, reasons
from secateur.graph.labels import Dim, Dims
from secateur.graph.provenance import Attribute
from secateur.graph.ran import Ran
from secateur.graph.reconciling import reconciled
from secateur.graph.sizing import Sizing, settle
from secateur.graph.solve import FIXED, Solution
from secateur.graph.trace import Inputs, named_tensors, trace

__all__ = ["Coupling", "Group", "Kept", "analyze"]

_MOST_COUNTERS = 4


@dataclass(frozen=True, eq=False)
class Coupling:
    """The result of `analyze`.

    Args:
        groups: Groups of units that can be removed.
        kept: Dims of parameters that have positions which cannot be removed, and why.
        dims: Labels of every parameter and buffer.
        solution: Classes of labels.
        sizing: What numbers in the code stand for.
        products: Every matrix product and convolution, for costs.
        mixed: Classes (bool each) whose positions some op combines, so that zeroing them is not removing them.
        parameters: Names of the parameters among the tensors.
        ran: The ops of the run on the example inputs, in their order, with the dims of their tensors.
        activations: Every result of an op that takes memory of its own, for costs.
        multiples: Dims of which some op needs a multiple of a number, and the number.
        by_values: Whether the model looked at values on its way, so that what it did may depend on them.
    """

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    dims: dict[str, Dims]
    solution: Solution
    sizing: Sizing
    products: tuple[Product, ...]
    mixed: npt.NDArray[np.bool_]
    parameters: frozenset[str]
    ran: tuple[Ran, ...] = field(default=(), repr=False)
    activations: tuple[Activation, ...] = field(default=(), repr=False)
    multiples: tuple[tuple[Dim, int], ...] = ()
    by_values: bool = True

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
                found.update(leaves(self.solution, np.array([one])).tolist())
        return tuple(sorted(found))

    def why_kept(self, name: str, dim: int, position: int) -> str:
        """Why a position stays."""
        classes = [one for one in self._classes_at(name, dim, position) if one != FIXED]
        return next(iter(reasons(self.solution, np.array(classes, dtype=np.int64))), UNKNOWN_REASON)

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
        known: dict[Dim, npt.NDArray[np.bool_] | None] = {}  # a layer and its norm have one width
        for name, dims in self.dims.items():
            for d, dim in enumerate(dims):
                roots = tuple(axis.root for axis in dim)
                if roots not in known:
                    kept = self.solution.kept(roots, gone)
                    known[roots] = None if kept.all() else kept
                mask = known[roots]
                if mask is not None:
                    found[name, d] = mask.copy()
        return found

    @cached_property
    def _counters(self) -> dict[tuple[int, ...], Counter]:
        """Those that were asked for last, since several things are counted of one choice."""
        return {}

    def counter(self, units: Iterable[int] = ()) -> Counter:
        """How many positions dims keep when these units are gone."""
        key = tuple(units)
        if key not in self._counters:
            if len(self._counters) == _MOST_COUNTERS:
                self._counters.clear()
            self._counters[key] = Counter(self.solution, self.solution.removed(key))
        return self._counters[key]

    def attributes(self, units: Iterable[int]) -> dict[Attribute, int]:
        """New values of the numbers in the code when these units go; only those that change."""
        values = self.sizing.values(self.counter(units))
        return {attribute: value for attribute, value in values.items() if value != attribute.value}

    def macs(self, units: Iterable[int] = ()) -> int:
        """Multiply-accumulate operations of the example inputs' run when these units are gone."""
        return macs(self.products, self.counter(units))

    def num_parameters(self, units: Iterable[int] = ()) -> int:
        """Number of parameters when these units are gone."""
        count = self.counter(units)
        return sum(math.prod([count(dim) for dim in self.dims[name]]) for name in self.parameters)

    def activation_bytes(self, units: Iterable[int] = ()) -> int:
        """Bytes of all results of ops in the example inputs' run when these units are gone, as if all were kept.

        Views and results written in place take no memory of their own and count nothing.
        """
        return activation_bytes(self.activations, self.counter(units))

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


@task("analyzing")
@without_collections()
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
        InvalidInputError: A selector in `ignore` matches nothing, or the model returned no tensors.

        What the model's own forward raises comes through unchanged.
    """
    traced = trace(
        model,
        [example_inputs, *more_inputs],
        fixed_outputs=(lambda _: ()) if prune_outputs else interface,
        free_inputs=prune_inputs,
    )
    selectors = selectors_among(ignore)
    for name in match(model, selectors) if selectors else ():
        for dim in traced.dims.get(name, ()):
            traced.labels.block(dim, "it is to be ignored")
    tensors = {id(tensor): traced.dims[name] for name, tensor in named_tensors(model).items()}
    sizing = settle(traced.labels, traced.ties, traced.values, tensors)
    parameters = frozenset(name for name, _ in model.named_parameters())
    solution, groups = reconciled(
        traced.labels, sizing, lambda found: tuple(groups_of(model, traced.dims, found, parameters & traced.weights))
    )
    mixed = np.zeros(len(solution.parents), dtype=bool)
    for dim, _ in traced.mixed:
        for axis in dim:
            classes = solution.classes(axis)
            mixed[classes[classes != FIXED]] = True
    return Coupling(
        groups,
        tuple(kept_of(traced.dims, solution, parameters)),
        traced.dims,
        solution,
        sizing,
        tuple(traced.products),
        mixed,
        parameters,
        tuple(traced.ran),
        tuple(traced.activations),
        tuple(dict.fromkeys(traced.multiples)),
        traced.by_values,
    )


def check_units(coupling: Coupling, units: Iterable[int]) -> None:
    """Refuse numbers that are no units of the coupling."""
    known = {unit for group in coupling.groups for unit in group.units}
    strange = [unit for unit in units if unit not in known]
    if strange:
        raise InvalidInputError("these are no units of the model.", units=strange[:8])
