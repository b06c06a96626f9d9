"""Erdős–Rényi: the larger a tensor, the sparser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from secateur._units import Units
from secateur.allocation._sharing import shared_out
from secateur.allocation._sparsity import check_none_emptied, check_sparsity, num_removed, num_units, room_of

__all__ = ["erdos_renyi", "erk"]


def erk(units: Mapping[str, Units], sparsity: float, *, min_units: int = 1) -> dict[str, int]:
    r"""Erdős–Rényi-Kernel: keep units in proportion to the sum of a tensor's dims.

    Tensor l of shape :math:`(n_1, n_2, …)` has density :math:`d_l = \varepsilon \sum_i n_i / \prod_i n_i`, capped at
    1. :math:`\varepsilon` is one number for all, chosen so that the total is met *with* the caps: what a capped tensor
    cannot take up goes to the others.

    Args:
        units: Units by dotted name; shapes and numbers count, scores do not.
        sparsity: Fraction of all units to remove, in [0, 1).
        min_units: Units that stay in every tensor (all of them, if it has fewer). What this protects is made up for by
            the others, so that the total stays exact. With 0 nothing is protected, and it is an error if that empties a
            tensor.

    Returns:
        Units to remove by dotted name; together ``round(sparsity * total)``, fractions being shared out by largest
        remainder. The total counts units, also where those of different tensors differ in size.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1), or `min_units` is negative or no whole number.
        InfeasibleError: `min_units` leaves fewer units to remove than were asked for, or with ``min_units=0`` a tensor
            would lose every unit.

    Example:
        >>> import torch
        >>> sizes = {"fc1.weight": (100, 50), "fc2.weight": (10, 100)}
        >>> units = {name: Units(torch.rand(a * b), torch.Size([a, b])) for name, (a, b) in sizes.items()}
        >>> erk(units, 0.9)
        {'fc1.weight': 4654, 'fc2.weight': 746}

    References:
        Evci, Gale, Menick, Castro, Elsen 2020, "Rigging the lottery: making all tickets winners", section 3 (1).
        Different here: every tensor keeps at least `min_units`, and counts are exact.
    """
    return _allocate(units, sparsity, {name: sum(each.shape) for name, each in units.items()}, min_units)


def erdos_renyi(units: Mapping[str, Units], sparsity: float, *, min_units: int = 1) -> dict[str, int]:
    r"""Erdős–Rényi: as `erk`, with only the first two dims in the sum.

    A kernel's height and width do not count in :math:`d_l = \varepsilon\,(n_1 + n_2) / (n_1 n_2)`, so that for linear
    layers it equals `erk`.

    Args:
        units: Units by dotted name; shapes and numbers count, scores do not.
        sparsity: Fraction of all units to remove, in [0, 1).
        min_units: Units that stay in every tensor (all of them, if it has fewer). What this protects is made up for by
            the others, so that the total stays exact. With 0 nothing is protected, and it is an error if that empties a
            tensor.

    Returns:
        Units to remove by dotted name; together exactly ``round(sparsity * total)``.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1), or `min_units` is negative or no whole number.
        InfeasibleError: `min_units` leaves fewer units to remove than were asked for, or with ``min_units=0`` a tensor
            would lose every unit.

    References:
        Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse connectivity inspired
        by network science", equation 1.
    """
    return _allocate(units, sparsity, {name: _first_two(each.shape) for name, each in units.items()}, min_units)


def _first_two(shape: Sequence[int]) -> int:
    """(n1 + n2) / (n1 n2) times the number of entries: what a tensor keeps at epsilon = 1."""
    return sum(shape[:2]) * prod(shape[2:])


def _allocate(
    units: Mapping[str, Units], sparsity: float, entries: Mapping[str, int], min_units: int
) -> dict[str, int]:
    """Keep units in proportion to `entries` (the entries kept at epsilon = 1), some and at most all of each."""
    check_sparsity(sparsity)
    total = num_units(units.values())
    gone = num_removed(total, sparsity)
    room = room_of(units, min_units, gone)
    sizes = {name: each.num_units for name, each in units.items() if each.num_units}
    # a scalar has no dims to sum, so it counts as one entry
    shares = [max(entries[name], 1) * size / max(units[name].shape.numel(), 1) for name, size in sizes.items()]
    stay = [size - room[name] for name, size in sizes.items()]
    kept = dict(zip(sizes, shared_out(shares, stay, list(sizes.values()), total - gone), strict=True))
    removed = {name: each.num_units - kept.get(name, each.num_units) for name, each in units.items()}
    if min_units == 0:
        check_none_emptied(units, removed, by=f"sparsity {sparsity:g}", fix="min_units=1 leaves a unit in each tensor")
    return removed
