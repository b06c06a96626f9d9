"""Other columns in every row: which ones go where only their number is common to all rows, and how that is verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from secateur.graph.coupling import Coupling
from secateur.graph.rows import Rows, rows_of
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
    for group in coupling.groups:
        rows = rows_of(coupling, group)
        if rows is not None:
            for key, index in _indices(coupling, _order(coupling, rows, kept)).items():
                with torch.no_grad():
                    tensor = tensors[key[0]]
                    tensor.copy_(tensor.index_select(key[1], torch.from_numpy(index).to(tensor.device)))
                if key in result:
                    result[key] = result[key][index]
    return result


def _order(coupling: Coupling, rows: Rows, kept: Positions) -> dict[int, int]:
    """For every class that is a column of a row, the class that takes its place: those that go come last."""
    gone: set[int] = set()
    for (name, d), mask in kept.items():
        for classes in _along(coupling, name, d):
            gone.update(classes[~mask].tolist())
    order: dict[int, int] = {}
    for row in rows.rows:
        places = [rows.places[row, unit] for unit in rows.units]
        lost = [set(classes) <= gone for classes in places]
        whole = all(lost)  # the row goes, with all its columns
        arranged = sorted(range(len(places)), key=lambda i: not whole and lost[i])
        for target, source in enumerate(arranged):
            order |= dict(zip(places[target], places[source], strict=True))
    return order


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
