"""What numbers in the code demand of the labels, and the new values of attributes once positions are gone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from secateur.graph.expressions import Count, evaluated, solved
from secateur.graph.labels import Dim, Dims, Labels, size_of
from secateur.graph.scales import settle_values
from secateur.graph.sources import Attribute, DimSize, key_of, sources_in
from secateur.graph.watching import Tie, Used

__all__ = ["Sizing", "settle"]


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
        """New values of all attributes, given how many positions dims keep.

        Where an expression leaves it open which of its attributes has changed, it is the first.
        """
        return self._settled(count)[0]

    def _settled(self, count: Count) -> tuple[dict[Attribute, int], list[Tie]]:
        """New values of all attributes, and the expressions that did not fit when their turn came."""
        known = {attribute: count(dim) for attribute, dim in self.attributes.items()}
        unfit = []
        for tie in self.derived:
            wanted = count(tie.dim)
            if evaluated(tie.source, known, count) != wanted:
                unfit.append(tie)
                unknown = [s for s in sources_in(tie.source) if isinstance(s, Attribute) and s not in known]
                found = ((attribute, solved(tie.source, attribute, known, count, wanted)) for attribute in unknown)
                fitting = ((a, value) for a, value in found if value is not None and value <= a.value)
                known.update(islice(fitting, 1))
        return known, unfit

    def contradicted(self, count: Count) -> list[Tie]:
        """Expressions that would not give the number of positions that their dim keeps."""
        known, unfit = self._settled(count)
        if len(known) == len(self.attributes):  # no value was found on the way, so all were judged by these
            return unfit
        return [tie for tie in self.derived if evaluated(tie.source, known, count) != count(tie.dim)]


def settle(
    labels: Labels, ties: Iterable[Tie], values: Iterable[Used], tensors: Mapping[int, Dims] = MappingProxyType({})
) -> Sizing:
    """State what the numbers demand: dims of one number keep equally many positions, so their positions go together.

    Args:
        labels: Where facts are written down.
        ties: Numbers that fix dims.
        values: Sizes that the code uses as values; see `secateur.graph.scales`.
        tensors: Labels of the model's tensors, by their ids.

    Returns:
        What attributes and expressions stand for.
    """
    attributes: dict[Attribute, Dim] = {}
    derived: list[Tie] = []
    expressions: dict[Hashable, Dim] = {}
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
            _equal(labels, expressions.setdefault(key_of(tie.source), tie.dim), tie.dim)
    return Sizing(attributes, derived, settle_values(labels, values, attributes, derived, tensors))


def _equal(labels: Labels, one: Dim, other: Dim) -> None:
    """Two dims whose sizes are the same number."""
    if one != other and size_of(one) == size_of(other):
        labels.as_many(one, other)
