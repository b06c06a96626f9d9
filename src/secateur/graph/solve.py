"""From facts to units: which labels are one, which follow others, which stay, and what can be removed.

Equal labels form *classes* (connected components). A class with a definition is *derived*: it is removed if one of its
parents is. Where a class has several definitions they must mean the same, so their parents are made equal one by one;
that makes new classes, so it is repeated until nothing changes. A class neither derived nor blocked is a *unit*, the
smallest thing that can be removed: a channel through all layers that share it, a head, a neuron.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from secateur.graph.labels import Axis, Block, Dim, Labels

__all__ = ["FIXED", "Solution", "solve"]

Ids = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

FIXED = -1
"""The parent or class of positions that carry no label."""


@dataclass(frozen=True)
class Solution:
    """Classes of labels and how they depend on each other.

    Args:
        class_of: Class of every label, shape (number of labels,).
        parents: For every class, the two classes that it is the product of, FIXED where it is none; shape (classes, 2).
        blocked: Whether a class must stay, shape (classes,).
        why: Reasons, by blocked class, of those that were blocked by a fact and not through a parent.
    """

    class_of: Ids
    parents: Ids
    blocked: Flags
    why: dict[int, str]

    @cached_property
    def is_unit(self) -> Flags:
        """Whether a class can be removed by itself, shape (classes,)."""
        units: Flags = (self.parents[:, 0] == FIXED) & (self.parents[:, 1] == FIXED) & ~self.blocked
        return units

    @cached_property
    def _products(self) -> tuple[Ids, Ids, Ids]:
        """The classes that depend on others, and the two that each of them depends on."""
        products = np.nonzero((self.parents != FIXED).any(axis=1))[0]
        outer, inner = self.parents[products].T.copy()
        return products, outer, inner

    @property
    def has_products(self) -> bool:
        """Whether some classes depend on others, as columns of heads do on both."""
        return len(self._products[0]) > 0

    def removed(self, units: Iterable[int]) -> Flags:
        """Which classes go when these units go, shape (classes,)."""
        gone = np.zeros(len(self.parents) + 1, dtype=bool)  # the last entry stands for FIXED
        gone[list(units)] = True
        products, outer, inner = self._products
        while True:
            following = gone[outer] | gone[inner]
            if not (following & ~gone[products]).any():
                kept: Flags = gone[:-1]
                return kept
            gone[products] |= following

    def classes(self, axis: Axis) -> Ids:
        """Class of every position of an axis, FIXED where it has no label."""
        if axis.is_fixed:
            return np.full(axis.size, FIXED, dtype=np.int32)
        return self.class_of[axis.atoms]

    def kept(self, dim: Dim, gone: Flags) -> Flags:
        """Which positions of a dim stay, given the classes that go; shape (size of the dim,)."""
        going = np.zeros(1, dtype=bool)
        for axis in dim:
            here = np.zeros(axis.size, dtype=bool) if axis.is_fixed else gone[self.classes(axis)]
            going = (going[:, None] | here[None, :]).reshape(-1)
        return ~going


def solve(labels: Labels) -> Solution:
    """Make classes of the facts.

    Args:
        labels: What the traces have brought to light.

    Returns:
        The classes, their parents, what is blocked and why.
    """
    order = labels.all_atoms()
    whole, parents = _definitions(labels)
    left = [a for a, _ in labels.equations]
    right = [b for _, b in labels.equations]
    blocks = list(labels.blocks)
    while True:
        class_of, number = _components(labels.num_atoms, left, right, order)
        of_class, conflicts = _parents_of_classes(class_of, number, whole, parents)
        lone = (conflicts == FIXED).any(axis=1)
        if lone.all():
            break
        left.append(conflicts[~lone, 0])
        right.append(conflicts[~lone, 1])
    stuck = conflicts[lone].max(axis=1, initial=FIXED)
    blocks.append(Block(stuck, "it is seen as a product with a size given from outside"))
    blocked, why = _blocked(blocks, class_of, of_class)
    return Solution(class_of, of_class, blocked, why)


def _components(size: int, left: list[Ids], right: list[Ids], order: Ids) -> tuple[Ids, int]:
    """Class of every label, and the number of classes, which are numbered as their first labels stand in `order`."""
    a, b = (np.concatenate([np.empty(0, dtype=np.int32), *side]) for side in (left, right))
    number, class_of = _connected(a, b, size, "weak")
    place = np.full(number, len(order), dtype=np.int32)
    place[class_of[order[::-1]]] = np.arange(len(order), dtype=np.int32)[::-1]
    rank = np.empty(number, dtype=np.int32)
    rank[np.argsort(place, kind="stable")] = np.arange(number, dtype=np.int32)
    return rank[class_of], int(number)


def _definitions(labels: Labels) -> tuple[Ids, Ids]:
    """All definitions, label by label: the defined labels (n,) and their parents (n, 2)."""
    wholes = [np.empty(0, dtype=np.int32)]
    parents = [np.empty((0, 2), dtype=np.int32)]
    for definition in labels.definitions:
        outer, inner = definition.parts
        wholes.append(_atoms(definition.whole))
        parents.append(np.stack([np.repeat(_atoms(outer), inner.size), np.tile(_atoms(inner), outer.size)], axis=1))
    return np.concatenate(wholes), np.concatenate(parents)


def _atoms(axis: Axis) -> Ids:
    """The labels of an axis, FIXED where it has none."""
    return np.full(axis.size, FIXED, dtype=np.int32) if axis.is_fixed else axis.atoms


def _parents_of_classes(class_of: Ids, number: int, whole: Ids, parents: Ids) -> tuple[Ids, Ids]:
    """The parents of every class, and pairs of labels that must be one because a class has two definitions.

    A pair of a label and FIXED means that the label must stay.
    """
    of_class = np.full((number, 2), FIXED, dtype=np.int32)
    if not len(whole):
        return of_class, np.empty((0, 2), dtype=np.int32)
    classes = class_of[whole]
    mapped = np.where(parents == FIXED, np.int32(FIXED), class_of[parents])
    # one definition a class is its representative; all others must have the same parents
    chosen = np.empty(number, dtype=np.int64)
    chosen[classes[::-1]] = np.arange(len(whole))[::-1]
    of_class[classes] = mapped[chosen[classes]]
    conflicts = []
    for part in range(2):
        differ = mapped[:, part] != of_class[classes, part]
        theirs = parents[chosen[classes[differ]], part]
        conflicts.append(np.stack([parents[differ, part], theirs], axis=1))
    return of_class, np.concatenate(conflicts)


def _blocked(blocks: Iterable[Block], class_of: Ids, parents: Ids) -> tuple[Flags, dict[int, str]]:
    """Which classes stay: those of blocked labels, then their parents, and those that depend on themselves."""
    blocked = np.zeros(len(parents), dtype=bool)
    several = list(blocks)
    atoms = [block.atoms for block in several]
    owner = np.repeat(np.arange(len(several)), [len(some) for some in atoms])
    here, first = np.unique(class_of[np.concatenate([np.empty(0, dtype=np.int32), *atoms])], return_index=True)
    why = {one: several[number].why for one, number in zip(here.tolist(), owner[first].tolist(), strict=True)}
    blocked[here] = True
    blocked[_cyclic(parents)] = True
    while True:
        above = np.unique(parents[blocked])
        above = above[above != FIXED]
        if blocked[above].all():
            return blocked, why
        blocked[above] = True


def _cyclic(parents: Ids) -> Ids:
    """Classes that are, through any number of steps, their own parents."""
    child, part = np.nonzero(parents != FIXED)
    parent = parents[child, part]
    number, strong = _connected(child, parent, len(parents), "strong")
    size = np.bincount(strong, minlength=number)
    cyclic: Ids = np.union1d(np.nonzero(size[strong] > 1)[0], child[parent == child])
    return cyclic


def _connected(a: Ids, b: Ids, size: int, connection: str) -> tuple[int, Ids]:
    """How many components the graph of edges a -> b has, and the component of each of its nodes."""
    import scipy.sparse  # takes as long to import as much of this package does, and is needed here alone
    from scipy.sparse.csgraph import connected_components

    graph = scipy.sparse.coo_matrix((np.ones(len(a), dtype=np.int8), (a, b)), shape=(size, size))
    number, component_of = connected_components(graph, directed=True, connection=connection)
    return int(number), component_of
