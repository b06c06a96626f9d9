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


@dataclass(frozen=True)
class Rows:
    """The columns of a group, row by row.

    Args:
        units: Units of the group, each a column of all rows.
        rows: Classes of the rows.
        places: For every row and column, the classes that are that column of that row (of queries, of keys, …).
    """

    units: tuple[int, ...]
    rows: tuple[int, ...]
    places: dict[tuple[int, int], tuple[int, ...]]


def rows_of(coupling: Coupling, group: Group) -> Rows | None:
    """The rows of a group whose columns need only be as many in each of them.

    Args:
        coupling: The analysis.
        group: A group of it.

    Returns:
        The rows; None if units of the group are no columns, or are the same ones in all rows for a reason.
    """
    columns = _columns(coupling, group)
    rows = tuple(sorted({row for row, _, _, _ in columns}))
    places: dict[tuple[int, int], list[int]] = {(row, unit): [] for row in rows for unit in group.units}
    for row, unit, _, one in columns:
        places[row, unit].append(one)
    if len(rows) < 2 or len({len(classes) for classes in places.values()}) != 1:
        return None
    look = _Look(coupling, frozenset(group.units), {one: row for row, _, _, one in columns}, frozenset(rows))
    if not look.stored_apart({axis.root for dims in coupling.dims.values() for dim in dims for axis in dim}):
        return None
    if not all(look.keeps_rows_apart(step) for step in _met(coupling)[group.units[0]]):
        return None
    return Rows(group.units, rows, {place: tuple(classes) for place, classes in places.items()})


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


def _columns(coupling: Coupling, group: Group) -> list[tuple[int, int, int, int]]:
    """(row, column, the row by which it is one, class) of every class that is a column of a row, in this order.

    There are none if some row has no label.
    """
    parents = coupling.solution.parents
    is_unit = np.zeros(len(parents) + 1, dtype=bool)
    is_unit[list(group.units)] = True
    if is_unit[parents[:, 0]].any():  # FIXED looks at the last entry; what is a row somewhere is no column
        return []
    children = np.nonzero(is_unit[parents[:, 1]])[0]
    row, column = parents[children, 0], parents[children, 1]
    if (row == FIXED).any():
        return []
    known = set(row.tolist())
    above = {one: _outermost(parents, one, known) for one in known}
    return sorted((above[r], u, r, c) for c, r, u in zip(children.tolist(), row.tolist(), column.tolist(), strict=True))


def _outermost(parents: Ids, row: int, known: set[int]) -> int:
    """The row that a row is part of, where that has columns itself: of grouped queries, that of their keys."""
    passed = {row}
    while True:
        above = [parent for parent in parents[row].tolist() if parent in known]
        if len(above) != 1 or above[0] in passed:
            return row
        row = above[0]
        passed.add(row)


_NO_COLUMN, _ALONE = -1, -2
"""In place of the number of a row: a class that is no column, and one that is a column of no row."""


@dataclass(frozen=True)
class _Look:
    """What a tensor must be like."""

    coupling: Coupling
    units: frozenset[int]
    row_of: dict[int, int]
    rows: frozenset[int]
    _seen: dict[Axis, tuple[frozenset[int], bool]] = field(default_factory=dict)

    def stored_apart(self, axes: Iterable[Axis]) -> bool:
        """Whether tensors of the model have no column without its row, and columns of all rows if of any."""
        classes = self.coupling.solution.classes
        of_row = np.full(len(self.coupling.solution.parents) + 1, _NO_COLUMN)  # the last entry is that of FIXED
        of_row[list(self.row_of)] = list(self.row_of.values())
        of_row[list(self.units)] = _ALONE
        for axis in axes:
            here = of_row[classes(axis)]
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
            parents, known = self.coupling.solution.parents, set(self.rows)
            classes = set(self.coupling.solution.classes(axis).tolist())
            columns = not self.units.isdisjoint(classes) or not self.row_of.keys().isdisjoint(classes)
            rows = {
                self.row_of[one] if one in self.row_of else _outermost(parents, one, known) for one in classes - {FIXED}
            }
            self._seen[axis] = frozenset(rows & known), columns
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
