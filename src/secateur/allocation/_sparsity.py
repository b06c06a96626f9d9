"""What a sparsity asks for, in whole units."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real

from secateur._errors import InvalidInputError
from secateur._units import Units

__all__ = ["check_sparsity", "num_removed", "num_units"]


def check_sparsity(sparsity: float) -> None:
    """Refuse a sparsity that is not a number in [0, 1); NaN is none.

    Raises:
        InvalidInputError: It is not.
    """
    if not (isinstance(sparsity, Real) and 0 <= sparsity < 1):
        raise InvalidInputError(
            "sparsity must be a number in [0, 1): the fraction of zeros.",
            sparsity=repr(sparsity),
            fix="sparsity=0.9 makes nine tenths of the entries zero",
        )


def num_units(units: Iterable[Units]) -> int:
    """All units together."""
    return sum(each.num_units for each in units)


def num_removed(count: int, sparsity: float) -> int:
    """The whole number of units that comes nearest to `sparsity` of `count`; halves go to the even number."""
    return round(float(sparsity) * count)
