"""What a sparsity asks for, in whole units, and what must stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from secateur._errors import InfeasibleError, InvalidInputError
from secateur._units import Units

__all__ = ["check_min_units", "check_none_emptied", "check_sparsity", "num_removed", "num_units", "room_of"]


def check_sparsity(sparsity: float | None) -> float:
    """Refuse a sparsity that is not a number in [0, 1), as NaN is none; otherwise return it as a float.

    Raises:
        InvalidInputError: It is not.
    """
    if not (isinstance(sparsity, Real) and 0 <= sparsity < 1):
        raise InvalidInputError(
            "sparsity must be a number in [0, 1): the fraction of zeros.",
            sparsity=repr(sparsity),
            fix="sparsity=0.9 makes nine tenths of the entries zero",
        )
    return float(sparsity)


def num_units(units: Iterable[Units]) -> int:
    """All units together."""
    return sum(each.num_units for each in units)


def num_removed(count: int, sparsity: float) -> int:
    """The whole number of units that comes nearest to `sparsity` of `count`; halves go to the even number."""
    return round(float(sparsity) * count)


def check_min_units(min_units: int) -> None:
    """Refuse a number of units to protect that is none.

    Raises:
        InvalidInputError: It is negative, or no whole number.
    """
    if not isinstance(min_units, Integral) or min_units < 0:
        raise InvalidInputError("min_units must be a whole number, and not negative.", min_units=repr(min_units))


def room_of(units: Mapping[str, Units], min_units: int, total: int) -> dict[str, int]:
    """How many units may go from each tensor if some are to stay in all.

    Args:
        units: Units by dotted name.
        min_units: Units that stay in every tensor; all of them, if it has fewer.
        total: Units that are to go in total.

    Raises:
        InvalidInputError: `min_units` is negative or no whole number.
        InfeasibleError: Fewer may go than are to go.
    """
    check_min_units(min_units)
    room = {name: max(0, each.num_units - min_units) for name, each in units.items()}
    if total > sum(room.values()):
        tight = [name for name, count in room.items() if count == 0]
        raise InfeasibleError(
            f"cannot remove {total} units and keep {min_units} in each of {len(room)} tensors.",
            asked=total,
            removable=sum(room.values()),
            no_room_in=tight or "none",
            fix="a lower sparsity, fewer min_units, or leave small tensors out with exclude=[…]",
        )
    return room


def check_none_emptied(units: Mapping[str, Units], removed: Mapping[str, int], *, by: str, fix: str) -> None:
    """Refuse to leave a tensor without a unit; `by` says what would do it.

    Raises:
        InfeasibleError: It would be.
    """
    emptied = {name: count for name, count in removed.items() if count and count == units[name].num_units}
    if emptied:
        raise InfeasibleError(
            f"{by} would remove every unit of {', '.join(map(repr, emptied))}.", units=emptied, fix=fix
        )
