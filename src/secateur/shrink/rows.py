"""Other columns in every row: which ones go where only their number is common to all rows, and how that is verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from secateur.graph.coupling import Coupling
from secateur.graph.rows import Rows, rows_of
from secateur.graph.solve import FIXED
from secateur.graph.trace import named_tensors

__all__ = ["chosen_by_row", "columns_lined_up_"]

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Positions = Mapping[tuple[str, int], Mask]


def chosen_by_row(coupling: Coupling, units: Iterable[int], scores: Scores) -> list[int]:
    """Let every row lose its own least columns, as many as the units take out of it.

    Args:
        coupling: The analysis.
        units: Class numbers of units that go.
        scores: One for every class; higher = kept.

    Returns:
        Classes that go: the units, with those that are columns replaced by the columns of single rows.
    """
    going = dict.fromkeys(units)
    for group in coupling.groups:
        columns = [unit for unit in group.units if unit in going]
        rows = rows_of(coupling, group) if 0 < len(columns) < len(group.units) else None
        if rows is not None:
            for unit in columns:
                del going[unit]
            for row in rows.rows:
                worth = scores[[rows.places[row, unit] for unit in rows.units]].sum(axis=1)
                least = np.lexsort((rows.units, worth))[: len(columns)]
                going |= {one: None for i in least.tolist() for one in rows.places[row, rows.units[i]]}
    return list(going)


def columns_lined_up_(model: nn.Module, coupling: Coupling, kept: Positions) -> dict[tuple[str, int], Mask]:
    """Put the columns of every row into an order in which the same ones go everywhere; the function does not change.

    Args:
        model: The model.
        coupling: Its analysis.
        kept: Positions that stay, by tensor and dim, perhaps others in every row.

    Returns:
        The positions that stay after that.

    Changes:
        Parameters and buffers of the model.
    """
    result = dict(kept)
    tensors = named_tensors(model)
    free = [rows for rows in (rows_of(coupling, group) for group in coupling.groups) if rows is not None]
    parents: list[tuple[int, int]] = [(o, i) for o, i in coupling.solution.parents.tolist()] if free else []
    below = _children(parents)
    for rows in free:
        for key, index in _indices(coupling, _order(coupling, rows, result, parents, below)).items():
            with torch.no_grad():
                tensor = tensors[key[0]]
                tensor.copy_(tensor.index_select(key[1], torch.from_numpy(index).to(tensor.device)))
            if key in result:
                result[key] = result[key][index]
    return result


def _order(
    coupling: Coupling,
    rows: Rows,
    kept: Positions,
    parents: Sequence[tuple[int, int]],
    below: Mapping[int, list[int]],
) -> dict[int, int]:
    """For every class that is a column of a row, the class that takes its place: those that go come last."""
    staying, gone = set[int](), set[int]()
    for (name, d), mask in kept.items():
        for classes in _along(coupling, name, d):
            gone.update(classes[~mask].tolist())
            staying.update(classes[mask].tolist())

    def is_lost(one: int) -> bool:
        children = below.get(one, [])
        return one in gone or (one not in staying and bool(children) and all(map(is_lost, children)))

    order: dict[int, int] = {}
    for row in rows.rows:
        places = [rows.places[row, unit] for unit in rows.units]
        lost = [list(map(is_lost, classes)) for classes in places]
        alive = [not all(column) for column in zip(*lost, strict=True)]  # else a row goes, with all its columns
        going = [any(flag for flag, lives in zip(flags, alive, strict=True) if lives) for flags in lost]
        for target, source in enumerate(sorted(range(len(places)), key=going.__getitem__)):
            order |= dict(zip(places[target], places[source], strict=True))
    return _handed_down(order, parents, below)


def _children(parents: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """The classes that are products with each class."""
    found: dict[int, list[int]] = {}
    for one, pair in enumerate(parents):
        for parent in set(pair) - {FIXED}:
            found.setdefault(parent, []).append(one)
    return found


def _handed_down(
    order: dict[int, int], parents: Sequence[tuple[int, int]], below: Mapping[int, list[int]]
) -> dict[int, int]:
    """The order of what columns are part of, too: of a column of a row in the part for queries of one projection."""
    result, pending = dict(order), list(order)
    while pending:
        alike: dict[tuple[int, int], list[int]] = {}  # of one product there is a class for each tensor that is cut so
        for one in sorted({child for parent in (*order, *order.values()) for child in below.get(parent, [])}):
            alike.setdefault(parents[one], []).append(one)
        pending = [one for several in alike.values() for one in several if one not in result]
        order = {}
        for one in pending:
            outer, inner = parents[one]
            order[one] = alike[result.get(outer, outer), result.get(inner, inner)][alike[outer, inner].index(one)]
        result |= order
    return result


def _indices(coupling: Coupling, order: Mapping[int, int]) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
    """For every dim with columns, which position each position takes its values from."""
    found = {}
    for name, dims in coupling.dims.items():
        for d in range(len(dims)):
            for classes in _along(coupling, name, d):
                if any(one in order for one in classes.tolist()):
                    where: dict[int, list[int]] = {}
                    for position, one in enumerate(classes.tolist()):
                        where.setdefault(one, []).append(position)
                    index = np.arange(len(classes))
                    for one, positions in where.items():
                        index[positions] = where[order.get(one, one)]
                    found[name, d] = index
    return found


def _along(coupling: Coupling, name: str, d: int) -> list[npt.NDArray[np.int64]]:
    """Classes along a dim that is one axis; a product of several is none."""
    dim = coupling.dims[name][d]
    return [coupling.solution.classes(dim[0])] if len(dim) == 1 else []
