"""Where a number in a model's code comes from: an attribute, the size of a dim, arithmetic on both."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OPERATIONS", "Attribute", "DimSize", "Expression", "Source", "key_of", "old_value", "sources_in"]


@dataclass(frozen=True)
class Attribute:
    """An integer that an object stores: ``owner.name``, or one entry of a tuple or list there."""

    owner: object = field(repr=False)
    label: str
    name: str
    index: int | None = None

    @property
    def value(self) -> int:
        """The number at present."""
        stored = vars(self.owner)[self.name]
        return int(stored if self.index is None else stored[self.index])

    def __hash__(self) -> int:
        """By identity of the owner, which need not be hashable."""
        return hash((id(self.owner), self.name, self.index))

    def __eq__(self, other: object) -> bool:
        """The same place in the same object."""
        return isinstance(other, Attribute) and (id(self.owner), self.name, self.index) == (
            id(other.owner),
            other.name,
            other.index,
        )


@dataclass(frozen=True, eq=False)
class DimSize:
    """The size of a dim of some tensor met in the trace, told by its labels."""

    dim: Any


@dataclass(frozen=True, eq=False)
class Expression:
    """Arithmetic on sizes; an operand may be a plain number."""

    symbol: str
    operands: tuple[Source | int, ...]


Source = Attribute | DimSize | Expression
"""Where a number comes from."""

OPERATIONS: dict[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
}


def key_of(source: Source | int) -> Hashable:
    """What is equal for two sources that are the same arithmetic on the same sizes."""
    if isinstance(source, Expression):
        return (source.symbol, *(key_of(operand) for operand in source.operands))
    return tuple(axis.root for axis in source.dim) if isinstance(source, DimSize) else source


def old_value(source: Source | int) -> int:
    """The number that a source gives at present."""
    if isinstance(source, int):
        return source
    if isinstance(source, Attribute):
        return source.value
    if isinstance(source, DimSize):
        return math.prod(axis.size for axis in source.dim)
    return OPERATIONS[source.symbol](*(old_value(operand) for operand in source.operands))


def sources_in(source: Source | int) -> Iterator[Attribute | DimSize]:
    """All attributes and dims that an expression is made of."""
    if isinstance(source, Expression):
        for operand in source.operands:
            yield from sources_in(operand)
    elif isinstance(source, Attribute | DimSize):
        yield source
