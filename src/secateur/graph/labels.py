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

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secateur.graph.axis import Atoms, Axis, Dim, Dims, size_of

__all__ = ["Atoms", "Axis", "Block", "Definition", "Dim", "Dims", "Labels", "size_of"]


@dataclass(frozen=True)
class Definition:
    """``whole`` is the product of two axes: its position (i, j) goes if and only if i goes or j goes."""

    whole: Axis
    parts: tuple[Axis, Axis]


@dataclass(frozen=True)
class Block:
    """Positions that stay, with the reason and the part of the model in which it arose."""

    atoms: Atoms
    why: str
    where: str = ""


@dataclass
class Labels:
    """The facts that one or several traces of a model have brought to light.

    Args:
        num_atoms: Number of labels handed out.
        equations: Pairs of runs of labels that are equal, position by position.
        definitions: Products.
        blocks: What stays, and why.
        doing: The op under way, for the reasons of blocks.
        where: The part of the model under way, for the same.
    """

    num_atoms: int = 0
    equations: list[tuple[Atoms, Atoms]] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    doing: str = "the code"
    where: str = ""
    _fresh: list[Axis] = field(default_factory=list)
    _fixed: dict[tuple[int, str], Axis] = field(default_factory=dict)
    _equal: set[tuple[Axis, Axis]] = field(default_factory=set)
    _factors: dict[Axis, list[Axis]] = field(default_factory=dict)
    _splits: dict[tuple[Axis, int], tuple[Axis, Axis]] = field(default_factory=dict)
    _products: dict[tuple[Axis, Axis], Axis] = field(default_factory=dict)
    _parts: dict[tuple[Axis, int, int, int], Axis] = field(default_factory=dict)

    # ---- making

    def fresh(self, size: int) -> Axis:
        """A new axis, equal to nothing yet."""
        axis = Axis(size, source=self)
        self._fresh.append(axis)
        return axis

    def new_atoms(self, size: int) -> Atoms:
        """Labels that nothing has yet."""
        start = self.num_atoms
        self.num_atoms += size
        return np.arange(start, start + size, dtype=np.int32)

    def all_atoms(self) -> Atoms:
        """Every label, in the order in which axes were made; axes that have none get theirs."""
        roots = dict.fromkeys(axis.root for axis in self._fresh)
        return np.concatenate([np.empty(0, dtype=np.int32), *(root.atoms for root in roots)])

    def fixed(self, size: int, why: str = "") -> Axis:
        """The axis of this size of which nothing can be removed; `why` says what it is."""
        found = self._fixed.get((size, why))
        if found is None:
            found = self._fixed[size, why] = Axis(size, why=why)
        return found

    def fresh_dim(self, size: int) -> Dim:
        """A dim of new labels; of size 1, the empty product."""
        return () if size == 1 else (self.fresh(size),)

    def fixed_dim(self, size: int) -> Dim:
        """A dim of which nothing can be removed."""
        return () if size == 1 else (self.fixed(size),)

    def input_dim(self, size: int) -> Dim:
        """A dim of an input of the model, of which nothing can be removed."""
        return () if size == 1 else (self.fixed(size, "it is an input of the model"),)

    def counted_dim(self, size: int) -> Dim:
        """A dim whose size depends on values."""
        return () if size == 1 else (Axis(size, is_counted=True),)

    def fresh_dims(self, shape: Iterable[int]) -> Dims:
        """Dims of a tensor all of whose positions may go: a parameter."""
        return tuple(self.fresh_dim(size) for size in shape)

    def fixed_dims(self, shape: Iterable[int]) -> Dims:
        """Dims of a tensor that no part of can be removed: an input, a constant."""
        return tuple(self.fixed_dim(size) for size in shape)

    # ---- stating

    def equal(self, one: Dim, other: Dim) -> None:
        """State that two dims of equal size are removed position by position together.

        Products of different sizes are cut to their common refinement: (12) against (3, 4) cuts the 12.
        """
        if one == other:
            return
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

    def as_many(self, one: Dim, other: Dim) -> None:
        """State that two dims of equal size keep equally many positions.

        Where they are products of the same axes they do so by themselves: (groups width) and (width groups). Elsewhere
        their positions are made equal, which is more than is asked for.
        """
        if Counter(self.finest(one)) != Counter(self.finest(other)):
            self.equal(one, other)

    def are_equal(self, one: Axis, other: Axis) -> bool:
        """Whether two axes were stated to be equal as a whole, one by one or through others."""
        seen, pending = {one.root}, [one.root]
        while pending:
            axis = pending.pop()
            found = {b for a, b in self._equal if a is axis} - seen
            seen |= found
            pending += found
        return other.root in seen

    def finest(self, dim: Iterable[Axis]) -> Iterator[Axis]:
        """The axes into which those of a dim have been cut."""
        for axis in dim:
            factors = self._factors.get(axis.root, [axis.root])
            yield from factors if factors == [axis.root] else self.finest(factors)

    def block(self, dim: Dim, why: str) -> None:
        """State that no position of a dim can be removed, and why."""
        self.blocks += [Block(axis.atoms, why, self.where) for axis in dim if not axis.is_fixed]

    def _equal_axes(self, a: Axis, b: Axis) -> None:
        """State that two axes of one size are equal; one that is fixed fixes the other."""
        if a.is_fixed or b.is_fixed:
            self.block((a, b), a.why or b.why or f"{self.doing} combines it with positions that stay")
        elif not a.unite(b) and (a.root, b.root) not in self._equal:
            self._equal |= {(a.root, b.root), (b.root, a.root)}
            self.equations.append((a.atoms, b.atoms))

    # ---- cutting and joining

    def split(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """See an axis of n · m positions as a product of axes of `outer` = n and m positions (row-major)."""
        axis, inner = axis.root, axis.size // outer
        if axis.is_fixed:
            return self.fixed(outer, axis.why), self.fixed(inner, axis.why)
        if outer == 1 or inner == 1:
            return (self.fixed(1), axis) if outer == 1 else (axis, self.fixed(1))
        key = (axis, outer)
        if key not in self._splits:
            self._splits[key] = self._split_at(axis, outer)
        return self._splits[key]

    def _split_at(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """Cut an axis at `outer`, in agreement with the factors that it has been cut into before."""
        factors = self._factors.setdefault(axis, [axis])
        before = 1
        for i, factor in enumerate(factors):
            if before == outer:
                return self.merge(factors[:i]), self.merge(factors[i:])
            if outer < before * factor.size:
                if outer % before == 0 and factor.size % (outer // before) == 0:
                    factors[i : i + 1] = (
                        self.split(factor, outer // before) if factor is not axis else self._define(axis, outer)
                    )
                    return self.merge(factors[: i + 1]), self.merge(factors[i + 1 :])
                break
            before *= factor.size
        return self._define(axis, outer)

    def _define(self, axis: Axis, outer: int) -> tuple[Axis, Axis]:
        """Define an axis as a product of two new ones."""
        parts = self.fresh(outer), self.fresh(axis.size // outer)
        self.definitions.append(Definition(axis, parts))
        return parts

    def merge(self, dim: Iterable[Axis]) -> Axis:
        """See a product as one axis."""
        axes = self.tidy(dim)
        if len(axes) <= 1:
            return axes[0] if axes else self.fixed(1)
        key = self.merge(axes[:-1]).root, axes[-1].root
        if key not in self._products:
            whole = self._products[key] = self.fresh(key[0].size * key[1].size)
            self._factors[whole] = list(key)
            self.definitions.append(Definition(whole, key))
        return self._products[key]

    def tidy(self, dim: Iterable[Axis]) -> Dim:
        """Leave out axes of size 1 and join neighbouring fixed ones."""
        axes: list[Axis] = []
        for axis in dim:
            if axis.size == 1:
                continue
            if axes and axis.is_fixed and axes[-1].is_fixed:
                axes[-1] = self._joint(axes[-1], axis)
            else:
                axes.append(axis)
        return tuple(axes)

    def _joint(self, one: Axis, other: Axis) -> Axis:
        """The product of two fixed axes."""
        if one.is_counted or other.is_counted:
            return Axis(one.size * other.size, is_counted=True)
        return self.fixed(one.size * other.size, one.why or other.why)

    def part(self, dim: Dim, start: int, stop: int, step: int = 1) -> Dim:
        """Some positions of a dim, as slicing takes them; a single one cannot go."""
        size = len(range(start, stop, step))
        if size == size_of(dim):
            return dim
        axis = self.span(dim, start, stop, step)
        return self.fixed_dim(size) if axis.is_fixed else self._alone(axis)

    def span(self, dim: Dim, start: int, stop: int, step: int = 1) -> Axis:
        """The same positions, to state something of them; they make no dim of a tensor."""
        axis = self.merge(dim).root
        if axis.is_fixed:
            return self.fixed(len(range(start, stop, step)))
        key = (axis, start, stop, step)
        if key not in self._parts:
            self._parts[key] = Axis(len(range(start, stop, step)), axis.atoms[start:stop:step])
        return self._parts[key]

    def taken(self, dim: Dim, index: Sequence[int] | npt.NDArray[np.int64]) -> Dim:
        """Positions of a dim in any order and number, as a flip or a repetition takes them."""
        axis = self.merge(dim)
        if axis.is_fixed:
            return self.fixed_dim(len(index))
        return self._alone(Axis(len(index), axis.atoms[np.asarray(index)]))

    def _alone(self, axis: Axis) -> Dim:
        """A dim of one axis; a dim of size 1 is never cut, so its position stays."""
        if axis.size != 1:
            return (axis,)
        self.block((axis,), f"{self.doing} takes a single position")
        return ()

    def joined(self, dims: Sequence[Dim]) -> Dim:
        """Dims one after the other, as ``cat`` joins them; single positions cannot be removed."""
        axes = [self.merge(dim) for dim in dims]
        if all(axis.is_fixed for axis in axes):
            return self.fixed_dim(sum(axis.size for axis in axes))
        pieces = [self._own_atoms(axis) for axis in axes]
        return (Axis(sum(axis.size for axis in axes), np.concatenate(pieces)),)

    def _own_atoms(self, axis: Axis) -> Atoms:
        """The labels of an axis; of a fixed one, new labels that stay."""
        if not axis.is_fixed:
            return axis.atoms
        new = self.new_atoms(axis.size)
        self.blocks.append(Block(new, f"{self.doing} joins it from positions that stay", self.where))
        return new
