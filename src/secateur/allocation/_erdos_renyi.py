"""Erdős–Rényi: the larger a tensor, the sparser."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import fsum, prod

from secateur._errors import InfeasibleError
from secateur._units import Units
from secateur.allocation._sparsity import check_sparsity, num_removed, num_units

__all__ = ["erdos_renyi", "erk"]


def erk(units: Mapping[str, Units], sparsity: float) -> dict[str, int]:
    r"""Erdős–Rényi-Kernel: keep units in proportion to the sum of a tensor's dims.

    Tensor l of shape :math:`(n_1, n_2, …)` has density :math:`d_l = \varepsilon \sum_i n_i / \prod_i n_i`, capped at
    1. :math:`\varepsilon` is one number for all, chosen so that the total is met *with* the caps: what a capped tensor
    cannot take up goes to the others.

    Args:
        units: Units by dotted name; shapes and numbers count, scores do not.
        sparsity: Fraction of all units to remove, in [0, 1).

    Returns:
        Units to remove by dotted name; together ``round(sparsity * total)``, fractions being shared out by largest
        remainder. The total counts units, also where those of different tensors differ in size.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1).
        InfeasibleError: Fewer units would be kept than there are tensors.

    Example:
        >>> import torch
        >>> sizes = {"fc1.weight": (100, 50), "fc2.weight": (10, 100)}
        >>> units = {name: Units(torch.rand(a * b), torch.Size([a, b])) for name, (a, b) in sizes.items()}
        >>> erk(units, 0.9)
        {'fc1.weight': 4654, 'fc2.weight': 746}

    References:
        Evci, Gale, Menick, Castro, Elsen 2020, "Rigging the lottery: making all tickets winners", section 3 (1).
        Different here: every tensor keeps at least one unit, and counts are exact.
    """
    return _allocate(units, sparsity, {name: sum(each.shape) for name, each in units.items()})


def erdos_renyi(units: Mapping[str, Units], sparsity: float) -> dict[str, int]:
    r"""Erdős–Rényi: as `erk`, with only the first two dims in the sum.

    A kernel's height and width do not count in :math:`d_l = \varepsilon\,(n_1 + n_2) / (n_1 n_2)`, so that for linear
    layers it equals `erk`.

    Args:
        units: Units by dotted name; shapes and numbers count, scores do not.
        sparsity: Fraction of all units to remove, in [0, 1).

    Returns:
        Units to remove by dotted name; together exactly ``round(sparsity * total)``.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1).
        InfeasibleError: Fewer units would be kept than there are tensors.

    References:
        Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse connectivity inspired
        by network science", equation 1.
    """
    return _allocate(units, sparsity, {name: _first_two(each.shape) for name, each in units.items()})


def _first_two(shape: Sequence[int]) -> int:
    """(n1 + n2) / (n1 n2) times the number of entries: what a tensor keeps at epsilon = 1."""
    return sum(shape[:2]) * prod(shape[2:])


def _allocate(units: Mapping[str, Units], sparsity: float, entries: Mapping[str, int]) -> dict[str, int]:
    """Keep units in proportion to `entries` (the entries kept at epsilon = 1), at least one and at most all of each."""
    check_sparsity(sparsity)
    total = num_units(units.values())
    kept_total = total - num_removed(total, sparsity)
    sizes = {name: each.num_units for name, each in units.items() if each.num_units}
    if kept_total < len(sizes):
        raise InfeasibleError(
            f"cannot keep at least one unit in each of {len(sizes)} tensors at sparsity {sparsity:g}.",
            units=total,
            kept=kept_total,
            tensors=list(sizes),
            fix="a lower sparsity, or leave small tensors out with exclude=",
        )
    # a scalar has no dims to sum, so it counts as one entry
    shares = [max(entries[name], 1) / units[name].size for name in sizes]
    kept = dict(zip(sizes, _round(_fill(shares, list(sizes.values()), kept_total), kept_total), strict=True))
    return {name: each.num_units - kept.get(name, 0) for name, each in units.items()}


def _fill(shares: Sequence[float], sizes: Sequence[int], total: int) -> list[float]:
    """The amounts ``clamp(epsilon * share, 1, size)`` that add up to the total."""
    if not shares:
        return []

    def amounts(epsilon: float) -> list[float]:
        return [min(max(epsilon * share, 1.0), size) for share, size in zip(shares, sizes, strict=True)]

    # the sum is piecewise linear in epsilon: find the last corner below the total, then go on along its straight line
    corners = sorted({x for share, size in zip(shares, sizes, strict=True) for x in (1.0 / share, size / share)})
    corner = corners[max(bisect_right(corners, float(total), key=lambda epsilon: fsum(amounts(epsilon))) - 1, 0)]
    slope = sum(s for s, size in zip(shares, sizes, strict=True) if 1.0 / s <= corner < size / s)
    start = fsum(amounts(corner))
    return amounts(corner + (total - start) / slope) if slope else amounts(corner)


def _round(amounts: Sequence[float], total: int) -> list[int]:
    """Whole numbers that add up to the total: the largest fractions are rounded up, the first of equal ones first."""
    whole = [int(amount) for amount in amounts]
    by_fraction = sorted(range(len(amounts)), key=lambda i: whole[i] - amounts[i])
    for i in by_fraction[: total - sum(whole)]:
        whole[i] += 1
    return whole
