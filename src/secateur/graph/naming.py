"""What a unit is called: channels, neurons, heads, kv groups, head dims, features.

A kv group is a key head with the query heads that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from torch import nn

from secateur._names import owner_of
from secateur.graph.solve import FIXED, Solution

__all__ = ["kind_of"]

Place = tuple[str, int]
Footprint = Mapping[Place, int]


def kind_of(
    model: nn.Module, solution: Solution, unit: int, footprint: Footprint, covered: Callable[[int], Footprint]
) -> str:
    """What a unit is called.

    Where query heads share key heads, rows of the query are (key head, query head of it, width) and those of the key
    (key head, width): all key heads together are in more rows than all query heads of one are.

    Args:
        model: The model.
        solution: Classes of labels.
        unit: The unit.
        footprint: How many positions it takes in each place.
        covered: How many positions all units like one of them take in each place.

    Returns:
        The name, in the plural.
    """
    if any(isinstance(owner_of(model, name)[0], nn.modules.conv._ConvNd) for name, _ in footprint):
        return "channels"
    if min(_in_layers(model, footprint).values()) > 1:  # a head takes as many positions as it is wide
        others = _partners(solution, unit)
        if others is not None:
            is_outer, partners = others
            mine, *theirs = (_in_layers(model, covered(one)) for one in (unit, *partners))
            if is_outer:
                return "kv groups" if any(_is_more(mine, other) for other in theirs if other) else "heads"
            return "heads" if any(_is_more(other, mine) for other in theirs) else "head dims"
    inside = {dim for name, dim in footprint if getattr(*owner_of(model, name)).dim() == 2}
    return "neurons" if inside == {0, 1} else "features"


def _in_layers(model: nn.Module, footprint: Footprint) -> Footprint:
    """The part of a footprint in linear layers; all where there are none. A table of biases has one position a head."""
    layers = {p: count for p, count in footprint.items() if isinstance(owner_of(model, p[0])[0], nn.Linear)}
    return layers or footprint


def _is_more(one: Footprint, other: Footprint) -> bool:
    """Whether a footprint covers all that another does, and something else."""
    return one != other and all(one.get(place, 0) >= positions for place, positions in other.items())


def _partners(solution: Solution, unit: int) -> tuple[bool, list[int]] | None:
    """Whether a unit is the outer factor of products, and the units that are the others; None if it is in no product.

    The outer factor of a product that is itself an inner factor (a pair of columns in the width of a head) is inner.
    """
    products = np.nonzero(solution.parents[:, 0] == unit)[0]
    above = np.isin(solution.parents[:, 1], products)
    outside = _units_in(solution, solution.parents[above, 0])
    if len(products) and not outside:
        return True, _units_in(solution, solution.parents[products, 1])
    inner = above | (solution.parents[:, 1] == unit)
    return (False, _units_in(solution, solution.parents[inner, 0])) if inner.any() else None


def _units_in(solution: Solution, classes: npt.NDArray[np.int32]) -> list[int]:
    """The units of which some classes are products."""
    found: set[int] = set()
    seen = {FIXED}  # classes that stay may depend on themselves
    pending = set(classes.tolist()) - seen
    while pending:
        one = pending.pop()
        seen.add(one)
        if solution.is_unit[one]:
            found.add(one)
        pending |= set(solution.parents[one].tolist()) - seen
    return sorted(found)
