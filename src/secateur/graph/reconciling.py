"""Arithmetic in the code against the labels: some units are taken away for trial, and what does not fit is tied.

``C // self.num_heads`` gives the width of a head as long as channels go where heads or columns of heads go. Nothing in
the ops says so, and to tie all that any expression mentions would tie too much. So the expressions are asked: where one
would give another number than its dim keeps, its sizes are tied to each other; where that does not help, they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from secateur.graph.costs import Counter
from secateur.graph.expressions import Count, tie_product
from secateur.graph.grouping import Group
from secateur.graph.labels import Dim, Labels
from secateur.graph.sizing import Sizing
from secateur.graph.solve import Solution, solve
from secateur.graph.sources import Attribute, DimSize, sources_in
from secateur.graph.watching import Tie

__all__ = ["reconciled"]


def reconciled(
    labels: Labels, sizing: Sizing, group: Callable[[Solution], tuple[Group, ...]]
) -> tuple[Solution, tuple[Group, ...]]:
    """Solve, with sizes that the code computes tied or kept where they would contradict what is removed.

    Args:
        labels: Where facts are written down; more of them come to it.
        sizing: What numbers in the code stand for.
        group: Makes groups of a solution.

    Returns:
        The solution and its groups.
    """
    stated: set[int] = set()
    while True:  # every expression is tied once and blocked once, so the rounds end
        solution = solve(labels)
        groups = group(solution)
        fresh = False
        for tie in _wrong(sizing, solution, groups) if sizing.derived else ():
            fresh |= _mend(labels, sizing, tie, stated)
        if not fresh:
            return solution, groups


def _mend(labels: Labels, sizing: Sizing, tie: Tie, stated: set[int]) -> bool:
    """Tie the sizes of an expression to each other, or keep them; whether that is new."""
    if id(tie) not in stated:
        stated.add(id(tie))
        if tie_product(labels, tie.source, tie.dim, sizing.attributes):
            return True
    if -id(tie) in stated:
        return False
    stated.add(-id(tie))
    for dim in (tie.dim, *_dims_in(tie, sizing)):
        labels.block(dim, f"its size is computed in the code ({tie.where}) in a way that does not follow")
    return True


def _dims_in(tie: Tie, sizing: Sizing) -> Iterator[Dim]:
    """The dims whose sizes an expression mentions."""
    for source in sources_in(tie.source):
        if isinstance(source, DimSize):
            yield source.dim
        elif isinstance(source, Attribute) and source in sizing.attributes:
            yield sizing.attributes[source]


def _wrong(sizing: Sizing, solution: Solution, groups: Sequence[Group]) -> list[Tie]:
    """Expressions that some trial contradicts."""
    found: dict[int, Tie] = {}
    for units in _trials(groups):
        for tie in sizing.contradicted(_counter(solution, units)):
            found[id(tie)] = tie
    return list(found.values())


def _counter(solution: Solution, units: Sequence[int]) -> Count:
    """How many positions a dim keeps when these units go."""
    return Counter(solution, solution.removed(units))


def _trials(groups: Sequence[Group]) -> Iterator[list[int]]:
    """Units to take away: one of every group; a third of every group; a third of every other group."""
    able = [group.units for group in groups if len(group.units) > 1]
    yield [units[-1] for units in able]
    third = [units[: max(1, len(units) // 3)] for units in able]
    yield [unit for units in third for unit in units]
    yield [unit for units in third[::2] for unit in units]
    yield [unit for units in third[1::2] for unit in units]
