"""Counts that an op needs: the kernels of grouped matrix products read rows of 16 bytes, so widths are multiples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from secateur.graph.coupling import Coupling, Group
from secateur.graph.grouping import leaves
from secateur.graph.labels import Dim, size_of

__all__ = ["aligned"]


def aligned(coupling: Coupling, units: Iterable[int]) -> tuple[list[int], list[tuple[Group, str]]]:
    """The units, without the last ones of those whose removal would leave a dim at a size that its op cannot take.

    Args:
        coupling: The coupling, whose `multiples` say which dims need a multiple of which number.
        units: Class numbers of the units that are to go, the first to go first.

    Returns:
        The units that may go, in the same order, and the groups of those that stay, with the reason.
    """
    chosen, given_back = list(units), set[int]()
    reasons: dict[int, int] = {}
    # Counts may depend on each other in a circle, but each round gives a unit back, so the rounds end.
    for _ in range(len(chosen)):
        found = next(_missing(coupling, chosen), None)
        if found is None:
            break
        takes, missing, number = found
        back = [unit for unit in reversed(chosen) if takes[unit]][: max(1, missing // max(takes.values()))]
        given_back.update(back)
        reasons.update(dict.fromkeys(back, number))
        chosen = [unit for unit in chosen if unit not in given_back]
    return chosen, list(_refused(coupling, reasons))


def _missing(coupling: Coupling, units: list[int]) -> Iterator[tuple[Counter[int], int, int]]:
    """For every dim of a wrong size: the positions that each unit takes there, how many are missing, and the number."""
    gone = coupling.solution.removed(units)
    for dim, number in coupling.multiples:
        missing = -int(coupling.solution.kept(dim, gone).sum()) % number
        if missing:
            takes = _taken(coupling, dim)
            if any(unit in takes for unit in units):  # a dim that loses nothing is as in the run that worked
                yield takes, missing, number


def _taken(coupling: Coupling, dim: Dim) -> Counter[int]:
    """How many positions of a dim go with each unit."""
    total = size_of(dim)
    found: Counter[int] = Counter()
    for axis in dim:
        for unit in leaves(coupling.solution, coupling.solution.classes(axis)).tolist():
            found[unit] += total // axis.size
    return found


def _refused(coupling: Coupling, reasons: dict[int, int]) -> Iterator[tuple[Group, str]]:
    """The groups of units that stay, with the reason."""
    for group in coupling.groups:
        staying = [reasons[unit] for unit in group.units if unit in reasons]
        if staying:
            yield group, f"{len(staying)} more units stay, so that an op gets a multiple of {max(staying)} positions"
