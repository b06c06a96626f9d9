"""Labels: every position of every dim of every traced tensor carries one, and positions that share it go together.

An *axis* is a run of positions, each with an integer label. A *dim* of a tensor is an ordered product of axes, as in
einops' ``(heads width)``: merging dims concatenates their axes, and position (i, j) of a product is removed if and only
if position i of the first axis or j of the second is. A dim of size 1 is the empty product.

Tracing only writes facts down: *equations* (these two axes are equal, position by position), *definitions* (this axis
is the product of those) and *blocks* (these positions cannot go, and why). `secateur.graph.solve` makes classes of
them.
Axes that cannot change at all (batch, height, sequence …) carry no labels of their own, so they cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Axis", "Block", "Definition", "Dim", "Dims", "Labels"]

Atoms = npt.NDArray[np.int64]


class Axis:
    """A run of positions with their labels; axes are compared by identity.

    Args:
        size: Number of positions.
        atoms: One label a position; None where nothing can be removed (a *fixed* axis).
    """

    __slots__ = ("atoms", "size")

    def __init__(self, size: int, atoms: Atoms | None) -> None:
        self.size = size
        self.atoms = atoms

    @property
    def is_fixed(self) -> bool:
        """Whether no position can ever be removed."""
        return self.atoms is None

    def __repr__(self) -> str:
        """Size and first label."""
        return f"Axis({self.size}, {'fixed' if self.atoms is None else f'{self.atoms[0]}…'})"


Dim = tuple[Axis, ...]
"""An ordered product of axes of sizes above 1; () has size 1."""

Dims = tuple[Dim, ...]
"""The dims of one tensor."""


@dataclass(frozen=True)
class Definition:
    """``whole`` is the product of two axes: its position (i, j) goes if and only if i goes or j goes."""

    whole: Axis
    parts: tuple[Axis, Axis]


@dataclass(frozen=True)
class Block:
    """Positions that stay, with the reason."""

    atoms: Atoms
    why: str


@dataclass
class Labels:
    """The facts that one or several traces of a model have brought to light."""

    num_atoms: int = 0
    equations: list[tuple[Atoms, Atoms]] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    _fixed: dict[int, Axis] = field(default_factory=dict)
    _equal: set[tuple[int, int]] = field(default_factory=set)
    _splits: dict[tuple[int, int], tuple[Axis, Axis]] = field(default_factory=dict)
    _products: dict[tuple[int, int], Axis] = field(default_factory=dict)
    _parts: dict[tuple[int, int, int, int], Axis] = field(default_factory=dict)
    _kept_alive: list[Axis] = field(default_factory=list)

    # ---- making

    def fresh(self, size: int) -> Axis:
        """An axis of new labels, equal to nothing yet."""
        start = self.num_atoms
        self.num_atoms += size
        axis = Axis(size, np.arange(start, start + size))
        self._kept_alive.append(axis)
        return axis

    def fixed(self, size: int) -> Axis:
        """The axis of this size of which nothing can be removed."""
        return self._fixed.setdefault(size, Axis(size, None))

    def fresh_dim(self, size: int) -> Dim:
        """A dim of new labels; of size 1, the empty product."""
        return () if size == 1 else (self.fresh(size),)

    def fixed_dim(self, size: int) -> Dim:
        """A dim of which nothing can be removed."""
        return () if size == 1 else (self.fixed(size),)

    def fixed_dims(self, shape: Iterable[int]) -> Dims:
        """Dims of a tensor that no part of can be removed: an input, a constant."""
        return tuple(self.fixed_dim(size) for size in shape)

    # ---- stating

    def equal(self, one: Dim, other: Dim) -> None:
        """State that two dims of equal size are removed position by position together.

        Products of different sizes are cut to their common refinement: (12) against (3, 4) cuts the 12.
        """
        left, right = list(one), list(other)
        while left and right:
            a, b = left.pop(0), right.pop(0)
            if a.size == b.size:
                self._equal_axes(a, b)
            elif a.size % b.size == 0:
                first, rest = self.split(a, b.size)
                self._equal_axes(first, b)
                left.insert(0, rest)
            elif b.size % a.size == 0:
                first, rest = self.split(b, a.size)
                self._equal_axes(a, first)
                right.insert(0, rest)
            else:
                self._equal_axes(self.merge((a, *left)), self.merge((b, *right)))
                return

    def block(self, dim: Dim, why: str) -> None:
        """State that no position of a dim can be removed, and why."""
        self.blocks += [Block(axis.atoms, why) for axis in dim if axis.atoms is not None]

    def _equal_axes(self, a: Axis, b: Axis) -> None:
        """State that two axes of one size are equal; one that is fixed fixes the other."""
        if a is b:
            return
        if a.atoms is None or b.atoms is None:
            self.block((a, b), "it is combined with a tensor whose size is given from outside")
            return
        key = (id(a), id(b))
        if key not in self._equal:
            self._equal |= {key, key[::-1]}
            self.equations.append((a.atoms, b.atoms))

    # ---- cutting and joining

    def split(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """See an axis of n · m positions as a product of axes of `outer` = n and m positions (row-major)."""
        inner = axis.size // outer
        if outer == 1 or inner == 1:
            return (self.fixed(1), axis) if outer == 1 else (axis, self.fixed(1))
        if axis.atoms is None:
            return self.fixed(outer), self.fixed(inner)
        key = (id(axis), outer)
        if key not in self._splits:
            parts = self.fresh(outer), self.fresh(inner)
            self._splits[key] = parts
            self.definitions.append(Definition(axis, parts))
            self._kept_alive.append(axis)
        return self._splits[key]

    def merge(self, dim: Dim) -> Axis:
        """See a product as one axis."""
        dim = self.tidy(dim)
        if len(dim) <= 1:
            return dim[0] if dim else self.fixed(1)
        outer, inner = self.merge(dim[:-1]), dim[-1]
        key = (id(outer), id(inner))
        if key not in self._products:
            whole = self._products[key] = self.fresh(outer.size * inner.size)
            self.definitions.append(Definition(whole, (outer, inner)))
            self._kept_alive += (outer, inner)
        return self._products[key]

    def tidy(self, dim: Iterable[Axis]) -> Dim:
        """Leave out axes of size 1 and join neighbouring fixed ones."""
        axes: list[Axis] = []
        for axis in dim:
            if axis.size == 1:
                continue
            if axes and axis.atoms is None and axes[-1].atoms is None:
                axes[-1] = self.fixed(axes[-1].size * axis.size)
            else:
                axes.append(axis)
        return tuple(axes)

    def part(self, dim: Dim, start: int, stop: int, step: int = 1) -> Dim:
        """Some positions of a dim, as slicing takes them."""
        size = len(range(start, stop, step))
        axis = self.merge(dim)
        if size == axis.size:
            return dim
        if size == 1 or axis.atoms is None:
            return self.fixed_dim(size)
        key = (id(axis), start, stop, step)
        if key not in self._parts:
            self._parts[key] = self._keep(Axis(size, axis.atoms[start:stop:step]))
        return (self._parts[key],)

    def taken(self, dim: Dim, index: Sequence[int] | npt.NDArray[np.int64]) -> Dim:
        """Positions of a dim in any order and number, as a roll, flip or repetition takes them."""
        axis = self.merge(dim)
        if axis.atoms is None or len(index) <= 1:
            return self.fixed_dim(len(index))
        return (self._keep(Axis(len(index), axis.atoms[np.asarray(index)])),)

    def joined(self, dims: Sequence[Dim]) -> Dim:
        """Dims one after the other, as ``cat`` joins them; single positions cannot be removed."""
        axes = [self.merge(dim) for dim in dims]
        if all(axis.atoms is None for axis in axes):
            return self.fixed_dim(sum(axis.size for axis in axes))
        pieces = []
        for axis in axes:
            if axis.atoms is None:
                piece = self.fresh(axis.size)
                self.block((piece,), "it is joined from a tensor whose size is given from outside")
                axis = piece
            pieces.append(axis.atoms)
        return (self._keep(Axis(sum(axis.size for axis in axes), np.concatenate(pieces))),)  # type: ignore[arg-type]

    def reshape(self, dims: Dims, sizes: Sequence[int]) -> Dims | None:
        """The dims after a view of the tensor as `sizes`; None where no product of axes describes them."""
        axes = [axis for dim in dims for axis in dim]
        axes = list(self.tidy(axes))
        result: list[Dim] = []
        for size in sizes:
            taken: list[Axis] = []
            while math.prod(axis.size for axis in taken) < size:
                if not axes:
                    return None
                missing = size // math.prod(axis.size for axis in taken)
                axis = axes.pop(0)
                if missing % axis.size == 0:
                    taken.append(axis)
                elif axis.size % missing == 0:
                    first, rest = self.split(axis, missing)
                    taken.append(first)
                    axes.insert(0, rest)
                else:
                    joint = self._cut_together(axis, axes, missing)
                    if joint is None:
                        return None
                    taken.append(joint)
            if math.prod(axis.size for axis in taken) != size:
                return None
            result.append(self.tidy(taken))
        return tuple(result)

    def _cut_together(self, axis: Axis, axes: list[Axis], missing: int) -> Axis | None:
        """Merge axes until `missing` positions can be split off in front; what remains goes back to `axes`."""
        joined = [axis]
        while axes:
            joined.append(axes.pop(0))
            if math.prod(a.size for a in joined) % missing == 0:
                first, rest = self.split(self.merge(tuple(joined)), missing)
                axes.insert(0, rest)
                return first
        return None

    def _keep(self, axis: Axis) -> Axis:
        """Keep an axis alive, since its identity is a key."""
        self._kept_alive.append(axis)
        return axis
