"""How numbers are written for people."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Cell", "Unit", "brief", "plain", "shown"]

Unit = Literal["", "name", "count", "fraction", "seconds", "bytes", "times"]
"""What a value is: words, a name in the code, or a number of things, of a whole, seconds, bytes, times as fast."""

Cell = str | int | float | tuple[str, ...] | None
"""What a place in a table holds."""

_NONE = "–"
_PREFIXES = ("", " k", " M", " G", " T", " P")


def shown(value: Cell, unit: Unit = "") -> str:
    """A value as it stands in a table.

    Example:
        >>> shown(1234567, "count"), shown(0.25, "fraction"), shown(0.0123, "seconds"), shown(1500, "bytes")
        ('1,234,567', '25.0 %', '12.3 ms', '1.5 kB')
        >>> shown(None), shown(("a", "b")), shown(1.5, "times"), shown(float("nan"))
        ('–', 'a, b', '1.50×', 'nan')
    """
    if value is None:
        return _NONE
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return str(value)
    return _number(value, unit)


def _number(value: int | float, unit: Unit) -> str:
    """A finite number."""
    match unit:
        case "count":
            return f"{value:,.0f}"
        case "fraction":
            return f"{value:.1%}".replace("%", " %")
        case "seconds":
            return f"{1e3 * value:.3g} ms"
        case "bytes":
            return _prefixed(value, "B")
        case "times":
            return f"{value:.2f}×"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def brief(value: Cell, unit: Unit = "") -> str:
    """A value where there is little room.

    Example:
        >>> brief(1234567, "count"), brief(999, "count"), brief(0.25, "fraction")
        ('1.23 M', '999', '25.0 %')
    """
    if unit == "count" and isinstance(value, int | float) and math.isfinite(value):
        return _prefixed(value, "")
    return shown(value, unit)


def plain(value: Cell) -> object:
    """A value as JSON has it: numbers that are not finite are none there."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value


def _prefixed(value: float, unit: str) -> str:
    """A number with three digits and a prefix for the rest."""
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    prefix = _PREFIXES[power] or (" " if unit else "")
    return f"{value:.3g}{prefix}{unit}"
