"""Sizes written in Python: which attribute, and which tensor's shape, each number in the model's code comes from.

``x.view(b, n, self.num_heads, -1)`` must be given another number once heads are gone. While a model is traced, the
integers that its modules store, and those that ``tensor.shape`` returns, are replaced by `Size`: an ``int`` that
remembers where it came from, through arithmetic too. A `TorchFunctionMode` sees which dim of which result each of them
fixes. That gives, with no search, the new value of an attribute (the number of positions that its dim keeps), and the
couplings that the code demands: the same ``head_dim`` for query and value is the same number of positions in both.

A number of unknown origin (a literal, or one that went through ``int()`` or numpy) keeps the dim that it fixes whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from torch import nn

__all__ = [
    "Attribute",
    "AttributeSizes",
    "DimSize",
    "Expression",
    "PinnedSize",
    "Size",
    "Source",
    "source_of",
    "sources_in",
    "stored_sizes",
]


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
    "neg": operator.neg,
}


class Size(int):
    """An int that remembers its source. All that code can do with an int it can do with this."""

    source: Source
    watcher: Callable[[str, Source, Source | int], None] | None

    def __new__(
        cls, value: int, source: Source, watcher: Callable[[str, Source, Source | int], None] | None = None
    ) -> Self:
        """Make one.

        Args:
            value: The number.
            source: Where it comes from.
            watcher: Told of comparisons that came out equal ("==") and of uses as a value ("value").
        """
        made = super().__new__(cls, value)
        made.source = source
        made.watcher = watcher
        return made

    def _combined(self, symbol: str, *operands: object) -> Any:
        """The result of an operation, with its source; NotImplemented if an operand is no int."""
        if not all(isinstance(operand, int) for operand in operands):
            return NotImplemented
        values = [int(operand) for operand in operands if isinstance(operand, int)]
        sources = tuple(source_of(operand) for operand in operands if isinstance(operand, int))
        return Size(OPERATIONS[symbol](*values), Expression(symbol, sources), self.watcher)

    def __add__(self, other: int) -> Any:
        return self._combined("+", self, other)

    def __radd__(self, other: int) -> Any:
        return self._combined("+", other, self)

    def __sub__(self, other: int) -> Any:
        return self._combined("-", self, other)

    def __rsub__(self, other: int) -> Any:
        return self._combined("-", other, self)

    def __mul__(self, other: int) -> Any:
        if isinstance(other, list | tuple | str):  # int * sequence
            return NotImplemented
        return self._combined("*", self, other) if isinstance(other, int) else self._value() * other

    def __rmul__(self, other: int) -> Any:
        if isinstance(other, list | tuple | str):  # sequence * int
            return NotImplemented
        return self._combined("*", other, self) if isinstance(other, int) else other * self._value()

    def __floordiv__(self, other: int) -> Any:
        return self._combined("//", self, other)

    def __rfloordiv__(self, other: int) -> Any:
        return self._combined("//", other, self)

    def __mod__(self, other: int) -> Any:
        return self._combined("%", self, other)

    def __rmod__(self, other: int) -> Any:
        return self._combined("%", other, self)

    def __neg__(self) -> Any:
        return self._combined("neg", self)

    def __truediv__(self, other: Any) -> Any:
        return self._value() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._value()

    def __pow__(self, other: Any, modulo: int | None = None) -> Any:
        return pow(self._value(), other, modulo)

    def __float__(self) -> float:
        return float(self._value())

    def __eq__(self, other: object) -> bool:
        same = int.__eq__(self, other) if isinstance(other, int) else False
        if same is True and self.watcher is not None and isinstance(other, Size):
            self.watcher("==", self.source, other.source)
        return same is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def _value(self) -> int:
        """The plain number, noted as one that becomes a value and not a size."""
        if self.watcher is not None:
            self.watcher("value", self.source, 0)
        return int.__int__(self)

    def __deepcopy__(self, memo: object) -> int:
        return int.__int__(self)

    def __copy__(self) -> int:
        return int.__int__(self)

    def __reduce__(self) -> Any:
        return int, (int.__int__(self),)


class PinnedSize(int):
    """A size that has changed, but computes as before where it is no size: it *is* `new`, and its float is `old`'s.

    ``heads * head_dim`` and ``view(…, head_dim)`` see the new number, ``head_dim ** -0.5`` and ``math.sqrt(head_dim)``
    the old one, so removing positions leaves the scale of attention alone.

    Example:
        >>> width = PinnedSize(12, 16)
        >>> width, 2 * width, width**-0.5, [0] * width == [0] * 12
        (12, 24, 0.25, True)
    """

    old: int

    def __new__(cls, new: int, old: int) -> Self:
        """Make one.

        Args:
            new: The size.
            old: What it computes with as a value.
        """
        made = super().__new__(cls, new)
        made.old = int(old)
        return made

    def _combined(self, symbol: str, *operands: object) -> Any:
        """An operation on the new sizes and on the old ones; NotImplemented if an operand is no int."""
        if not all(isinstance(operand, int) for operand in operands):
            return NotImplemented
        numbers = [operand for operand in operands if isinstance(operand, int)]
        new = OPERATIONS[symbol](*(int.__int__(number) for number in numbers))
        return PinnedSize(new, OPERATIONS[symbol](*(old_size(number) for number in numbers)))

    def __add__(self, other: int) -> Any:
        return self._combined("+", self, other) if isinstance(other, int) else self.old + other

    def __radd__(self, other: int) -> Any:
        return self._combined("+", other, self) if isinstance(other, int) else other + self.old

    def __sub__(self, other: int) -> Any:
        return self._combined("-", self, other) if isinstance(other, int) else self.old - other

    def __rsub__(self, other: int) -> Any:
        return self._combined("-", other, self) if isinstance(other, int) else other - self.old

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, list | tuple | str):
            return NotImplemented
        return self._combined("*", self, other) if isinstance(other, int) else self.old * other

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, list | tuple | str):
            return NotImplemented
        return self._combined("*", other, self) if isinstance(other, int) else other * self.old

    def __floordiv__(self, other: int) -> Any:
        return self._combined("//", self, other)

    def __rfloordiv__(self, other: int) -> Any:
        return self._combined("//", other, self)

    def __mod__(self, other: int) -> Any:
        return self._combined("%", self, other)

    def __rmod__(self, other: int) -> Any:
        return self._combined("%", other, self)

    def __neg__(self) -> Any:
        return self._combined("neg", self)

    def __truediv__(self, other: Any) -> Any:
        return self.old / old_size(other)

    def __rtruediv__(self, other: Any) -> Any:
        return old_size(other) / self.old

    def __pow__(self, other: Any, modulo: int | None = None) -> Any:
        return pow(self.old, old_size(other), modulo)

    def __float__(self) -> float:
        return float(self.old)

    def __copy__(self) -> PinnedSize:
        return self

    def __deepcopy__(self, memo: object) -> PinnedSize:
        return self

    def __reduce__(self) -> Any:
        return PinnedSize, (int.__int__(self), self.old)


def old_size(number: Any) -> Any:
    """What a number was before positions went; itself if it is not pinned."""
    return number.old if isinstance(number, PinnedSize) else number


def source_of(number: int) -> Source | int:
    """The source of a number that has one, the number itself otherwise."""
    return number.source if isinstance(number, Size) else int(number)


def sources_in(source: Source | int) -> Iterator[Attribute | DimSize]:
    """All attributes and dims that an expression is made of."""
    if isinstance(source, Expression):
        for operand in source.operands:
            yield from sources_in(operand)
    elif isinstance(source, Attribute | DimSize):
        yield source


def stored_sizes(model: nn.Module) -> Iterator[tuple[Attribute, int]]:
    """All positive integers that a model's modules (and their configs) store, with their places.

    Example:
        >>> [(place.name, value) for place, value in stored_sizes(nn.Linear(3, 2))]
        [('in_features', 3), ('out_features', 2)]
    """
    for label, owner in _owners(model):
        for name, value in vars(owner).items():
            if name.startswith("_") or name in _FLAGS:
                continue
            if _is_size(value, least=1):
                yield Attribute(owner, label, name), value
            elif type(value) in (tuple, list) and value and all(_is_size(entry, least=1) for entry in value):
                for index, entry in enumerate(value):
                    yield Attribute(owner, label, name, index), entry


class AttributeSizes:
    """For as long as the ``with`` block lasts, integers stored in a model's modules (and their configs) are `Size`.

    Args:
        model: The model.
        watcher: See `Size`.
    """

    def __init__(self, model: nn.Module, watcher: Callable[[str, Source, Source | int], None]) -> None:
        self._owners = list(_owners(model))
        self._watcher = watcher
        self._old: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> Self:
        """Put `Size` in place of the integers."""
        for label, owner in self._owners:
            for name, value in list(vars(owner).items()):
                tracked = self._tracked(owner, label, name, value)
                if tracked is not value:
                    self._old.append((vars(owner), name, value))
                    vars(owner)[name] = tracked
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the integers back."""
        for attributes, name, old in reversed(self._old):
            attributes[name] = old
        self._old.clear()

    def _tracked(self, owner: object, label: str, name: str, value: Any) -> Any:
        """The value with sources, itself if it is no size."""
        if name.startswith("_") or name in _FLAGS:
            return value
        if _is_size(value):
            return Size(value, Attribute(owner, label, name), self._watcher)
        if type(value) in (tuple, list) and value and all(_is_size(entry) for entry in value):
            entries = (Size(v, Attribute(owner, label, name, i), self._watcher) for i, v in enumerate(value))
            return type(value)(entries)
        return value


_FLAGS = frozenset({"training", "dump_patches", "call_super_init"})


def _is_size(value: Any, least: int = 2) -> bool:
    """Whether a stored value can be a number of positions: an int, above 1 by default (such dims are never cut)."""
    return isinstance(value, int) and type(value) in (int, PinnedSize) and value >= least


def _owners(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Objects whose integers count: modules, and configs that modules store (each once)."""
    seen: set[int] = set()
    for label, module in model.named_modules():
        yield label, module
        for name, value in vars(module).items():
            if id(value) not in seen and _is_config(value):
                seen.add(id(value))
                yield f"{label}.{name}" if label else name, value


def _is_config(value: object) -> bool:
    """Whether an object is a bag of settings: no module, no container, with a ``__dict__`` that holds integers."""
    if isinstance(value, nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return False
    return any(_is_size(entry) for entry in vars(value).values())
