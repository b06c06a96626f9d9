"""A total shared out in whole numbers, in proportion and within bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import fsum

__all__ = ["shared_out"]


def shared_out(weights: Sequence[float], low: Sequence[int], high: Sequence[int], total: int) -> list[int]:
    r"""Share a total out in proportion to weights.

    The parts are :math:`\operatorname{clamp}(\varepsilon w_i, l_i, h_i)` with the one :math:`\varepsilon` that meets
    the total: what a part at its bound cannot take goes to the others. Fractions go by largest remainder, the first of
    equal ones first.

    Args:
        weights: Positive numbers.
        low: The least that each may get.
        high: The most that each may get.
        total: What is shared out, from ``sum(low)`` to ``sum(high)``.

    Returns:
        Whole numbers within the bounds that add up to the total.

    Example:
        >>> shared_out([1.0, 1.0, 2.0], low=[0, 0, 0], high=[1, 9, 9], total=10)
        [1, 3, 6]
    """
    parts = list(zip(weights, low, high, strict=True))
    if not parts:
        return []

    def amounts(epsilon: float) -> list[float]:
        return [min(max(epsilon * weight, float(least)), float(most)) for weight, least, most in parts]

    # the sum is piecewise linear in epsilon: find the last corner below the total, then go on along its straight line
    corners = sorted({bound / weight for weight, least, most in parts for bound in (least, most)})
    corner = corners[max(bisect_right(corners, float(total), key=lambda epsilon: fsum(amounts(epsilon))) - 1, 0)]
    slope = fsum(weight for weight, least, most in parts if least / weight <= corner < most / weight)
    start = fsum(amounts(corner))
    return _rounded(amounts(corner + (total - start) / slope) if slope else amounts(corner), total)


def _rounded(amounts: Sequence[float], total: int) -> list[int]:
    """Whole numbers that add up to the total: the largest fractions are rounded up, the first of equal ones first."""
    whole = [int(amount) for amount in amounts]
    by_fraction = sorted(range(len(amounts)), key=lambda i: whole[i] - amounts[i])
    for i in by_fraction[: total - sum(whole)]:
        whole[i] += 1
    return whole
