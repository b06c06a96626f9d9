"""What numbers in the code demand of the labels, and the new values of attributes once positions are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from secateur.graph.labels import Dim, Labels
from secateur.graph.provenance import OPERATIONS, Attribute, DimSize, Expression, Source, sources_in
from secateur.graph.watching import Tie, Used

__all__ = ["Sizing", "settle"]

Count = Callable[[Dim], int]
"""Number of positions that a dim keeps."""


@dataclass(frozen=True)
class Sizing:
    """Which number in the code stands for which dim.

    Args:
        attributes: Attributes and a dim whose number of positions each of them is.
        derived: Expressions and the dims whose number of positions they must give.
        pinned: Attributes that the code also computes values with; those go on with the old number.
    """

    attributes: dict[Attribute, Dim]
    derived: list[Tie]
    pinned: frozenset[Attribute] = field(default_factory=frozenset)

    def values(self, count: Count) -> dict[Attribute, int]:
        """New values of all attributes, given how many positions dims keep."""
        known = {attribute: count(dim) for attribute, dim in self.attributes.items()}
        for tie in self.derived:
            unknown = {s for s in sources_in(tie.source) if isinstance(s, Attribute) and s not in known}
            if len(unknown) == 1:
                attribute = unknown.pop()
                found = _solved(tie.source, attribute, known, count, count(tie.dim))
                if found is not None:
                    known[attribute] = found
        return known

    def contradicted(self, count: Count) -> list[Tie]:
        """Expressions that would not give the number of positions that their dim keeps."""
        known = self.values(count)
        return [tie for tie in self.derived if _evaluated(tie.source, known, count) != count(tie.dim)]


def settle(labels: Labels, ties: Iterable[Tie], values: Iterable[Used]) -> Sizing:
    """State what the numbers demand: dims of one number keep equally many positions, so their positions go together.

    Args:
        labels: Where facts are written down.
        ties: Numbers that fix dims.
        values: Sizes that the code uses as values. Attributes in Python (``self.head_dim ** -0.5``) are pinned to the
            old number. Others are not to be told apart from sizes (``x.shape[-1] ** -0.5``): their dims stay, since
            removing positions would change the function silently.

    Returns:
        What attributes and expressions stand for.
    """
    attributes: dict[Attribute, Dim] = {}
    derived = []
    for tie in ties:
        if isinstance(tie.source, DimSize):
            _equal(labels, tie.source.dim, tie.dim)
        elif isinstance(tie.source, Attribute):
            if tie.source in attributes:
                _equal(labels, attributes[tie.source], tie.dim)
            else:
                attributes[tie.source] = tie.dim
        else:
            derived.append(tie)
    pinned: set[Attribute] = set()
    for used in values:
        leaves = list(sources_in(used.source))
        of_attributes = [leaf for leaf in leaves if isinstance(leaf, Attribute)]
        if used.in_python and len(of_attributes) == len(leaves):
            pinned.update(of_attributes)
            continue
        for leaf in leaves:
            dim = leaf.dim if isinstance(leaf, DimSize) else attributes.get(leaf)
            if dim is not None:
                labels.block(dim, "the code computes with its size (a scale), so another size is another function")
    return Sizing(attributes, derived, frozenset(pinned))


def _equal(labels: Labels, one: Dim, other: Dim) -> None:
    """Two dims whose sizes are the same number."""
    if one is not other and _size(one) == _size(other):
        labels.as_many(one, other)


def _size(dim: Dim) -> int:
    """Number of positions of a dim."""
    return int(np.prod([axis.size for axis in dim], dtype=np.int64))


def _evaluated(source: Source | int, known: dict[Attribute, int], count: Count) -> int | None:
    """The value of an expression with new sizes; None if something in it is unknown or it divides by zero."""
    if isinstance(source, int):
        return source
    if isinstance(source, DimSize):
        return count(source.dim)
    if isinstance(source, Attribute):
        return known.get(source)
    operands = [_evaluated(operand, known, count) for operand in source.operands]
    given = [operand for operand in operands if operand is not None]
    if len(given) < len(operands) or (source.symbol in ("//", "%") and given[1] == 0):
        return None
    return OPERATIONS[source.symbol](*given)


def _solved(source: Source, attribute: Attribute, known: dict[Attribute, int], count: Count, wanted: int) -> int | None:
    """The value of one attribute with which an expression gives the wanted number; the largest up to the old one."""
    if isinstance(source, Expression):
        for value in range(attribute.value, 0, -1):
            if _evaluated(source, {**known, attribute: value}, count) == wanted:
                return value
    return None
