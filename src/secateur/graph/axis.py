"""Axes, of which the dims of traced tensors are made: runs of positions that carry labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from secateur.graph.labels import Labels

__all__ = ["Atoms", "Axis", "Dim", "Dims", "size_of"]

Atoms = npt.NDArray[np.int32]


class Axis:
    """A run of positions with their labels; axes are compared by identity.

    A new axis has no labels until something needs one of them. If it is made equal to another as a whole before that,
    it takes on the other's labels; nearly all axes of a model do, so that nearly all labels need never exist.

    Args:
        size: Number of positions.
        atoms: One label a position; None for an axis that is fixed or new.
        source: Where a new axis gets its labels from; None for one that is fixed or has labels.
        is_counted: Whether the number of positions depends on values (a boolean index), so that another run may have
            more or fewer.
        why: Of a fixed axis: what it is, as a reason why what it is combined with stays.

    Attributes:
        is_fixed: Whether no position can ever be removed.
    """

    __slots__ = ("_atoms", "_source", "_twin", "is_counted", "is_fixed", "size", "why")

    def __init__(
        self,
        size: int,
        atoms: Atoms | None = None,
        source: Labels | None = None,
        *,
        is_counted: bool = False,
        why: str = "",
    ) -> None:
        self.size = size
        self.is_fixed = atoms is None and source is None
        self.is_counted = is_counted
        self.why = why
        self._atoms = atoms
        self._source = source
        self._twin: Axis | None = None

    @property
    def root(self) -> Axis:
        """The axis whose labels this one has."""
        axis = self
        while axis._twin is not None:
            axis = axis._twin
        if axis is not self:
            self._twin = axis
        return axis

    @property
    def atoms(self) -> Atoms:
        """One label a position.

        Raises:
            ValueError: The axis is fixed.
        """
        root = self.root
        if root._atoms is None:
            if root._source is None:
                raise ValueError(f"{self} has no labels.")
            root._atoms = root._source.new_atoms(root.size)
            root._source = None
        return root._atoms

    def unite(self, other: Axis) -> bool:
        """Make two axes of one size one, which can be done if one of them has no labels yet; whether they are."""
        mine, theirs = self.root, other.root
        if mine is not theirs and mine._atoms is not None:
            mine, theirs = theirs, mine
        if mine is not theirs and mine._atoms is None:
            mine._twin, mine._source = theirs, None
        return mine.root is theirs

    def __repr__(self) -> str:
        """Size and kind."""
        kind = "counted" if self.is_counted else "fixed" if self.is_fixed else "free"
        return f"Axis({self.size}, {kind})"


Dim = tuple[Axis, ...]
"""An ordered product of axes of sizes above 1; () has size 1."""

Dims = tuple[Dim, ...]
"""The dims of one tensor."""


def size_of(dim: Iterable[Axis]) -> int:
    """Number of positions of a product of axes."""
    return math.prod(axis.size for axis in dim)
