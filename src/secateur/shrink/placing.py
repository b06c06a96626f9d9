"""Where the positions of new units lie: in every tensor beside those of a unit of their group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secateur.graph.coupling import Coupling
from secateur.graph.labels import Axis, Dim
from secateur.graph.solve import FIXED

__all__ = ["Layout", "Places"]

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOST_COPIED = 64
"""So many units of a group are copied before it begins again with the last one."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The positions of a dim once it has grown.

    Args:
        source: For every position afterwards the old position that it is, or is a copy of.
        is_new: Whether it is a copy.
    """

    source: Ids
    is_new: Flags

    @property
    def at(self) -> Ids:
        """Where the copies are, ascending."""
        return np.flatnonzero(self.is_new)


class Places:
    """Layouts of dims when groups grow.

    A new unit takes positions directly after those of the last unit of its group: where that has a run of positions in
    an axis (the rows of a head), the new run follows it; where it has one in each of several blocks (the gates of an
    LSTM, the parts of a concatenation), the new unit has one in each block. New units are copies of the group's units
    in turn, from the last one backwards.

    Args:
        coupling: The coupling.
        added: Number of a group -> how many units it gets.

    Attributes:
        overlapping: Numbers of groups that are left out, since they touch the same positions as one before them.
    """

    def __init__(self, coupling: Coupling, added: Mapping[int, int]) -> None:
        solution = coupling.solution
        self._solution = solution
        self._added = dict(added)
        self._grower = np.full(len(solution.parents) + 1, FIXED, dtype=np.int64)  # the last entry stands for FIXED
        self._known: dict[int, tuple[Axis, Layout]] = {}
        self._copied: dict[int, list[Flags]] = {}
        self.overlapping: set[int] = set()
        for number in added:
            models = coupling.groups[number].units[: -1 - min(added[number], _MOST_COPIED) : -1]
            self._copied[number] = [np.append(solution.removed([unit]), False) for unit in models]
            touched = self._copied[number][0]
            if (self._grower[touched] != FIXED).any():
                self.overlapping.add(number)
            else:
                self._grower[touched] = number

    def __call__(self, dim: Dim) -> int:
        """Number of positions of a dim afterwards."""
        return math.prod([len(self._of_axis(axis).source) for axis in dim])

    def of(self, dim: Dim) -> Layout:
        """The layout of a dim, which is a product of axes."""
        source = np.arange(math.prod([axis.size for axis in dim])).reshape([axis.size for axis in dim])
        is_new = np.zeros(source.shape, dtype=bool)
        for number, axis in enumerate(dim):
            layout = self._of_axis(axis)
            source, is_new = source.take(layout.source, number), is_new.take(layout.source, number)
            is_new |= layout.is_new.reshape([-1 if n == number else 1 for n in range(len(dim))])
        return Layout(source.reshape(-1), is_new.reshape(-1))

    def _of_axis(self, axis: Axis) -> Layout:
        """The layout of one axis."""
        if id(axis) not in self._known:
            self._known[id(axis)] = axis, self._laid_out(axis)
        return self._known[id(axis)][1]

    def _laid_out(self, axis: Axis) -> Layout:
        """Runs of positions that belong to one growing group, each followed by its copies."""
        classes = self._solution.classes(axis)
        grower = self._grower[classes]
        starts = np.flatnonzero(np.diff(grower, prepend=FIXED - 1))
        sources, flags = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=bool)]
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), axis.size], strict=True):
            number = int(grower[start])
            copies = self._added.get(number, 0)
            sources += [np.arange(start, end), *(self._like(number, n, classes, start, end) for n in range(copies))]
            flags.append(np.arange((1 + copies) * (end - start)) >= end - start)
        return Layout(np.concatenate(sources), np.concatenate(flags))

    def _like(self, number: int, copy: int, classes: Ids, start: int, end: int) -> Ids:
        """The positions of which a copy of a run is made: those of another unit where the last one has the run."""
        models = self._copied[number]
        last, other = (np.flatnonzero(model[classes]) for model in (models[0], models[copy % len(models)]))
        if len(other) != len(last):
            return np.arange(start, end)
        first = int(np.searchsorted(last, start))
        return other[first : first + end - start]
