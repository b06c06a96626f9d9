"""Integers that are more than a number: one that remembers its source, and one that was another number before.

All that code can do with an int it can do with these. As long as arithmetic gives integers, these are sizes, and the
result is an integer of the same kind; where a size meets a float or becomes one, it is used as a *value*
(``head_dim ** -0.5``), which a size of a smaller model must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from secateur.graph.sources import OPERATIONS, Expression, Source

__all__ = ["PinnedSize", "Size", "Watcher", "old_size", "source_of"]

Watcher = Callable[[str, Source, Source | int], None]
"""Told of comparisons that came out equal ("==") and of uses as a value ("value")."""

Binary = Callable[[Any, Any], Any]


def _binary(symbol: str) -> tuple[Binary, Binary]:
    """An operator and its form with exchanged operands."""

    def compute(left: Any, right: Any, self: _Integer, other: Any) -> Any:
        if isinstance(other, int):
            return self._combined(symbol, left, right)
        if symbol == "*" and isinstance(other, list | tuple | str):
            return NotImplemented  # the sequence repeats itself
        return OPERATIONS[symbol](_value_of(left), _value_of(right))

    def forwards(self: _Integer, other: Any) -> Any:
        return compute(self, other, self, other)

    def backwards(self: _Integer, other: Any) -> Any:
        return compute(other, self, self, other)

    return forwards, backwards


class _Integer(int):
    """An int with operators that tell sizes from values."""

    def _combined(self, symbol: str, *operands: int) -> Any:
        """The size that an operation gives."""
        raise NotImplementedError  # each of the two kinds has its own

    def _value(self) -> int:
        """What it is as a value."""
        raise NotImplementedError  # each of the two kinds has its own

    __add__, __radd__ = _binary("+")
    __sub__, __rsub__ = _binary("-")
    __mul__, __rmul__ = _binary("*")
    __floordiv__, __rfloordiv__ = _binary("//")
    __mod__, __rmod__ = _binary("%")

    def __neg__(self) -> Any:
        return self._combined("neg", self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self._value() / _value_of(other)

    def __rtruediv__(self, other: Any) -> Any:
        return _value_of(other) / self._value()

    def __pow__(self, other: Any, modulo: int | None = None) -> Any:
        if isinstance(other, int) and other >= 0 and modulo is None:
            return self._combined("**", self, other)
        return pow(self._value(), _value_of(other), modulo)

    def __rpow__(self, other: Any, modulo: int | None = None) -> Any:
        return pow(_value_of(other), self._value(), modulo)

    def __float__(self) -> float:
        return float(self._value())

    def __array_ufunc__(self, function: np.ufunc, method: str, *operands: Any, **kwargs: Any) -> Any:
        """Numpy's functions compute with it as a value."""
        return getattr(function, method)(*map(_value_of, operands), **kwargs)


class Size(_Integer):
    """An int that remembers its source.

    Args:
        value: The number.
        source: Where it comes from.
        watcher: Told what it is used for.
        old: What it computes with as a value, if that is another number: a `PinnedSize` is watched.
    """

    source: Source
    watcher: Watcher | None
    old: int

    def __new__(cls, value: int, source: Source, watcher: Watcher | None = None, old: int | None = None) -> Self:
        """Make one."""
        made = super().__new__(cls, value)
        made.source = source
        made.watcher = watcher
        made.old = int.__int__(made) if old is None else old
        return made

    def _combined(self, symbol: str, *operands: int) -> Any:
        """The result with its source."""
        value = OPERATIONS[symbol](*(int.__int__(operand) for operand in operands))
        old = OPERATIONS[symbol](*(int.__int__(old_size(operand)) for operand in operands))
        return Size(value, Expression(symbol, tuple(source_of(operand) for operand in operands)), self.watcher, old)

    def _value(self) -> int:
        """The number that it is as a value, noted as one that becomes a value."""
        if self.watcher is not None:
            self.watcher("value", self.source, 0)
        return self.old

    def __eq__(self, other: object) -> bool:
        same = int.__eq__(self, other) if isinstance(other, int) else False
        if same is True and self.watcher is not None and isinstance(other, int):
            self.watcher("==", self.source, source_of(other))
        return same is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __deepcopy__(self, memo: object) -> int:
        return int.__int__(self)

    def __copy__(self) -> int:
        return int.__int__(self)

    def __reduce__(self) -> Any:
        return int, (int.__int__(self),)


class PinnedSize(_Integer):
    """A size that has changed, but computes as before where it is no size: it *is* `new`, and its float is `old`'s.

    ``heads * head_dim`` and ``view(…, head_dim)`` see the new number, ``head_dim ** -0.5`` and ``math.sqrt(head_dim)``
    the old one, so removing positions leaves the scale of attention alone.

    Args:
        new: The size.
        old: What it computes with as a value.

    Example:
        >>> width = PinnedSize(12, 16)
        >>> width, 2 * width, width**-0.5, [0] * width == [0] * 12
        (12, 24, 0.25, True)
    """

    old: int

    def __new__(cls, new: int, old: int) -> Self:
        """Make one."""
        made = super().__new__(cls, new)
        made.old = int(old)
        return made

    def _combined(self, symbol: str, *operands: int) -> Any:
        """The operation on the new sizes and on the old ones."""
        new = OPERATIONS[symbol](*(int.__int__(operand) for operand in operands))
        return PinnedSize(new, OPERATIONS[symbol](*(old_size(operand) for operand in operands)))

    def _value(self) -> int:
        """The old number."""
        return self.old

    def __copy__(self) -> PinnedSize:
        return self

    def __deepcopy__(self, memo: object) -> PinnedSize:
        return self

    def __reduce__(self) -> Any:
        return PinnedSize, (int.__int__(self), self.old)


def _value_of(number: Any) -> Any:
    """What any operand is as a value."""
    return number._value() if isinstance(number, _Integer) else number


def old_size(number: Any) -> Any:
    """What a number was before positions went; itself if it is not pinned."""
    return number.old if isinstance(number, PinnedSize | Size) else number


def source_of(number: int) -> Source | int:
    """The source of a number that has one, the number itself otherwise."""
    return number.source if isinstance(number, Size) else int(number)
