"""Columns that only need to be as many in every row: each head may lose other columns than its neighbours.

The columns of heads are tied by position, since one number of columns serves all heads: unit ``j`` takes column ``j``
out of each of them. Where nothing ever compares, adds or sums columns of different heads, a head's columns may be put
into any order without changing the function. Then only the number is common, and each row may choose for itself.

That is so if a column never comes without its row: in no tensor of the model is there a dim of columns alone, in none
that the run made unless all rows are told apart beside it, and no op on such tensors makes a row of several.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secateur.graph.coupling import Coupling, Group
from secateur.graph.labels import Axis, Dim
from secateur.graph.ran import Ran
from secateur.graph.rules import contraction, joining, pointwise, shape
from secateur.graph.solve import FIXED

__all__ = ["Rows", "rows_of"]

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a group, row by row.

    Args:
        units: Units of the group, each a column of all rows.
        rows: Classes of the rows.
        places: The classes that are a column of a row (of queries, of keys, …), shape (rows, units, parts).
    """

    units: tuple[int, ...]
    rows: tuple[int, ...]
    places: Ids


_ROWS: weakref.WeakKeyDictionary[Coupling, dict[int, Rows | None]] = weakref.WeakKeyDictionary()


def rows_of(coupling: Coupling, group: Group) -> Rows | None:
    """The rows of a group whose columns need only be as many in each of them.

    Args:
        coupling: The analysis.
        group: A group of it.

    Returns:
        The rows; None if units of the group are no columns, or are the same ones in all rows for a reason.
    """
    if not coupling.solution.has_products:
        return None
    known, first = _ROWS.setdefault(coupling, {}), group.units[0]
    if first not in known:
        known[first] = _rows_of(coupling, group)
    return known[first]


def _rows_of(coupling: Coupling, group: Group) -> Rows | None:
    """The same, looked for."""
    look = _Look.of(coupling, group)
    places = None if look is None else look.places()
    if look is None or places is None:
        return None
    if not look.stored_apart({axis.root for dims in coupling.dims.values() for dim in dims for axis in dim}):
        return None
    if not all(look.keeps_rows_apart(step) for step in _met(coupling)[group.units[0]]):
        return None
    return Rows(group.units, tuple(sorted(look.rows)), places)


_MET: weakref.WeakKeyDictionary[Coupling, dict[int, list[Ran]]] = weakref.WeakKeyDictionary()


def _met(coupling: Coupling) -> dict[int, list[Ran]]:
    """For every group, by its first unit: the ops of the run that have one of its units along some axis."""
    if coupling not in _MET:
        number = np.full(len(coupling.solution.parents) + 1, -1)  # the last entry is that of FIXED
        for g, group in enumerate(coupling.groups):
            number[list(group.units)] = g
        found: dict[int, list[Ran]] = {group.units[0]: [] for group in coupling.groups}
        on_axis: dict[Axis, list[int]] = {}
        for step in coupling.ran:
            here: set[int] = set()
            for dims in (*step.inputs, *step.outputs):
                for axis in (axis for dim in dims for axis in dim if not axis.is_fixed):
                    if axis.root not in on_axis:
                        on_axis[axis.root] = np.unique(number[coupling.solution.classes(axis)]).tolist()
                    here.update(on_axis[axis.root])
            for g in here - {-1}:
                found[coupling.groups[g].units[0]].append(step)
        _MET[coupling] = found
    return _MET[coupling]


def _outermost(parents: Ids, rows: Flags, classes: Ids) -> Ids:
    """For each of these classes: the row that it is part of, and of grouped queries that of their keys; or itself."""
    here = classes
    while True:
        above = parents[here]
        is_row = rows[above]
        target = np.where(is_row[:, 0], above[:, 0], above[:, 1])
        following = np.where(is_row[:, 0] != is_row[:, 1], target, here)
        if np.array_equal(following, here):
            return here
        here = following


_NO_COLUMN, _ALONE = -1, -2
"""In place of the number of a row: a class that is no column, and one that is a column of no row."""


@dataclass(frozen=True, eq=False)
class _Look:
    """What a tensor must be like. Arrays have an entry for each class, and a last one that stands for FIXED.

    Args:
        coupling: The analysis.
        units: The units that are columns.
        is_row: Whether a class is one of the rows.
        row_of: Of classes that are columns of a row: that row; otherwise `_NO_COLUMN` or `_ALONE`.
        rows: All rows.
    """

    coupling: Coupling
    units: Ids
    is_row: Flags
    row_of: Ids
    rows: frozenset[int]
    _seen: dict[Axis, tuple[frozenset[int], bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, coupling: Coupling, group: Group) -> _Look | None:
        """For the units of a group; None if they are not columns of rows, or if some row has no label."""
        parents, units = coupling.solution.parents, np.array(group.units)
        is_unit = np.zeros(len(parents) + 1, dtype=bool)
        is_unit[units] = True
        columns = np.nonzero(is_unit[parents[:, 1]])[0]
        rows = parents[columns, 0]
        if is_unit[parents[:, 0]].any() or not len(columns) or (rows == FIXED).any():
            return None  # what is a row somewhere is no column
        is_row = np.zeros(len(parents) + 1, dtype=bool)
        is_row[rows] = True
        above = _outermost(parents, is_row, rows)
        row_of = np.full(len(parents) + 1, _NO_COLUMN)
        row_of[columns] = above
        row_of[units] = _ALONE
        is_row[rows] = False
        is_row[above] = True
        return cls(coupling, units, is_row, row_of, frozenset(above.tolist()))

    def places(self) -> Ids | None:
        """Which classes are which column of which row, if there are several rows with as many classes everywhere."""
        columns = np.nonzero(self.row_of >= 0)[0]
        row, unit = self.row_of[columns], self.coupling.solution.parents[columns, 1]
        order = np.lexsort((columns, self.coupling.solution.parents[columns, 0], unit, row))
        _, counts = np.unique(np.stack([row, unit]), axis=1, return_counts=True)
        if len(self.rows) < 2 or len(counts) != len(self.rows) * len(self.units) or len(np.unique(counts)) != 1:
            return None
        return columns[order].reshape(len(self.rows), len(self.units), -1)

    def stored_apart(self, axes: Iterable[Axis]) -> bool:
        """Whether tensors of the model have no column without its row, and columns of all rows if of any."""
        for axis in axes:
            here = self.row_of[self.coupling.solution.classes(axis)]
            here = here[here != _NO_COLUMN]
            if len(here) and self.rows != set(here.tolist()):
                return False
        return True

    def keeps_rows_apart(self, step: Ran) -> bool:
        """Whether an op has all rows wherever it has columns, and makes every row of one row only."""
        for dims in (*step.inputs, *step.outputs):
            seen = [self._rows_and_columns(dim) for dim in dims]
            rows: set[int] = set().union(*(rows for rows, _ in seen))
            if any(columns for _, columns in seen) and not self.rows <= rows:
                return False
        combined = _contracted(step)
        if not combined and not step.mixed:
            return step.rule.__module__ in _ROW_BY_ROW
        return all(columns or not rows for rows, columns in map(self._rows_and_columns, (*combined, *step.mixed)))

    def _rows_and_columns(self, dim: Dim) -> tuple[set[int], bool]:
        """Which rows a dim tells apart, and whether it tells columns apart."""
        rows, columns = set[int](), False
        for axis in dim:
            if not axis.is_fixed:
                mine, has_columns = self._on_axis(axis.root)
                rows |= mine
                columns |= has_columns
        return rows, columns

    def _on_axis(self, axis: Axis) -> tuple[frozenset[int], bool]:
        """The same of one axis; many ops have it."""
        if axis not in self._seen:
            classes = self.coupling.solution.classes(axis)
            classes = classes[classes != FIXED]
            own = self.row_of[classes]
            rows = np.where(own >= 0, own, _outermost(self.coupling.solution.parents, self.is_row, classes))
            self._seen[axis] = self.rows & set(rows.tolist()), bool((own != _NO_COLUMN).any())
        return self._seen[axis]


_ROW_BY_ROW = frozenset(module.__name__ for module in (shape, pointwise, joining))
"""Rules of ops that make each position of the result of the same position of their inputs, or move positions about."""


def _contracted(step: Ran) -> tuple[Dim, ...]:
    """Dims over which a matrix product or an attention sums."""
    if "scaled_dot_product" in step.name:
        query, key = step.inputs[:2]
        return query[-1], key[-2]
    if step.rule.__module__ == contraction.__name__ and step.name in _PRODUCTS:
        left, right = step.inputs[-2:]
        return left[-1], right[-2]
    return ()


_PRODUCTS = frozenset(("aten.mm", "aten.bmm", "aten.addmm", "aten.addmm_", "aten.baddbmm", "aten.baddbmm_"))
