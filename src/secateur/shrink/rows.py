"""Other columns in every row: which ones go where only their number is common to all rows, and how that is verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.graph.coupling import Coupling
from secateur.graph.rows import Rows, rows_of
from secateur.graph.solve import FIXED

__all__ = ["Positions", "chosen_by_row", "columns_in_line", "units_in_line"]

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]
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
            worth = scores[rows.places].sum(axis=2)
            for columns_of_row, own in zip(rows.places, worth, strict=True):
                least = np.lexsort((rows.units, own))[: len(columns)]
                going |= dict.fromkeys(columns_of_row[least].ravel().tolist())
    return list(going)


def columns_in_line(
    tensors: Mapping[str, Tensor], coupling: Coupling, kept: Positions
) -> tuple[dict[str, Tensor], Positions]:
    """Put the columns of every row into an order in which the same ones go everywhere; the function does not change.

    Args:
        tensors: Parameters and buffers of the model by name; they are left as they are.
        coupling: Its analysis.
        kept: Positions that stay, by tensor and dim, perhaps others in every row.

    Returns:
        New values of the tensors in which columns are moved, and the positions that stay after that.
    """
    free = _free_rows(coupling)
    if not free:
        return {}, dict(kept)
    moved: dict[str, Tensor] = {}
    result = dict(kept)
    for (name, d), index in _indices(coupling, _order(coupling, free, kept)).items():
        tensor = moved.get(name, tensors[name]).detach()
        moved[name] = tensor.index_select(d, torch.from_numpy(index).to(tensor.device))
        if (name, d) in result:
            result[name, d] = result[name, d][index]
    return moved, result


def units_in_line(coupling: Coupling, units: Iterable[int]) -> list[int]:
    """Of which units the columns are that go after `columns_in_line`, if these units say how many go.

    Args:
        coupling: The analysis.
        units: Class numbers of units that go.

    Returns:
        Class numbers of units.
    """
    going = set(units)
    for rows in _free_rows(coupling):
        number = len(going.intersection(rows.units))
        going = going.difference(rows.units).union(rows.units[len(rows.units) - number :])
    return sorted(going)


def _free_rows(coupling: Coupling) -> list[Rows]:
    """The columns that only need to be as many in every row."""
    return [rows for rows in (rows_of(coupling, group) for group in coupling.groups) if rows is not None]


class _Below:
    """Which classes are products with each class.

    Args:
        parents: The two classes of which each class is the product, shape (classes, 2).
    """

    def __init__(self, parents: Ids) -> None:
        self.parents = parents
        child, which = np.nonzero(parents != FIXED)
        above = parents[child, which]
        order = np.argsort(above, kind="stable")
        self._child, self._above = child[order], above[order]
        self._starts = np.searchsorted(self._above, np.arange(len(parents) + 1))

    def of(self, classes: Ids) -> Ids:
        """The products with any of these, ascending."""
        wanted = np.zeros(len(self.parents), dtype=bool)
        wanted[classes] = True
        return np.unique(self._child[wanted[self._above]])

    def lost(self, gone: Mask, staying: Mask) -> Mask:
        """Which classes go; one about which nothing is known goes if all products with it do."""
        is_open = ~gone & ~staying & (np.diff(self._starts) > 0)
        lost = gone
        while True:
            left = np.bincount(self._above, weights=~lost[self._child], minlength=len(gone))
            following = gone | (is_open & (left == 0))
            if np.array_equal(following, lost):
                return lost
            lost = following


def _order(coupling: Coupling, free: Sequence[Rows], kept: Positions) -> Ids:
    """For every class, the class that takes its place: columns that go come last in their row."""
    below = _Below(coupling.solution.parents)
    gone, staying = np.zeros((2, len(below.parents)), dtype=bool)
    for (name, d), mask in kept.items():
        for classes in _along(coupling, name, d):
            gone[classes[~mask]] = True
            staying[classes[mask & (classes != FIXED)]] = True
    lost = below.lost(gone, staying)
    order = np.arange(len(below.parents))
    for rows in free:
        for places, flags in zip(rows.places, lost[rows.places], strict=True):
            alive = ~flags.all(axis=0)  # else a row goes, with all its columns
            going = (flags & alive).any(axis=1)
            order[places] = places[np.argsort(going, kind="stable")]
    return _handed_down(order, np.concatenate([rows.places.ravel() for rows in free]), below)


def _handed_down(order: Ids, moved: Ids, below: _Below) -> Ids:
    """The order of what columns are part of, too: of a column of a row in the part for queries of one projection."""
    result, known = order.copy(), np.zeros(len(order), dtype=bool)
    known[moved] = True
    while len(moved):
        products = below.of(np.concatenate([moved, result[moved]]))
        pairs = below.parents[products]
        codes = _coded(pairs, len(order))
        by_code = np.argsort(codes, kind="stable")  # of one product there is a class for each tensor that is cut so
        products, pairs, codes = products[by_code], pairs[by_code], codes[by_code]
        rank = np.arange(len(codes)) - np.searchsorted(codes, codes)
        sources = _coded(np.where(pairs == FIXED, FIXED, result[pairs]), len(order))
        taken = products[np.searchsorted(codes, sources) + rank]
        is_new = ~known[products]
        moved = products[is_new]
        result[moved] = taken[is_new]
        known[moved] = True
    return result


def _coded(pairs: Ids, number: int) -> Ids:
    """One number for each pair of classes, of which there are so many."""
    codes: Ids = (pairs[:, 0].astype(np.int64) + 1) * (number + 1) + pairs[:, 1] + 1
    return codes


def _indices(coupling: Coupling, order: Ids) -> dict[tuple[str, int], Ids]:
    """For every dim with columns that move, which position each position takes its values from."""
    found: dict[tuple[str, int], Ids] = {}
    is_moved = np.append(order != np.arange(len(order)), False)  # the last entry stands for FIXED
    for name, dims in coupling.dims.items():
        for d in range(len(dims)):
            for classes in _along(coupling, name, d):
                if is_moved[classes].any():
                    sources = np.where(classes == FIXED, FIXED, order[classes])
                    index = np.empty(len(classes), dtype=np.int64)
                    index[np.argsort(sources, kind="stable")] = np.argsort(classes, kind="stable")
                    found[name, d] = index
    return found


def _along(coupling: Coupling, name: str, d: int) -> list[Ids]:
    """Classes along a dim that is one axis; a product of several is none."""
    dim = coupling.dims[name][d]
    return [coupling.solution.classes(dim[0])] if len(dim) == 1 else []
