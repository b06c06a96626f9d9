"""Uniform: the same sparsity everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from secateur._units import Units
from secateur.allocation._sharing import shared_out
from secateur.allocation._sparsity import check_min_units, check_none_emptied, check_sparsity, num_removed, room_of

__all__ = ["uniform"]


def uniform(units: Mapping[str, Units], sparsity: float, *, min_units: int = 0) -> dict[str, int]:
    """Remove the same fraction of every tensor, ``round(sparsity * n)`` of its n units.

    Args:
        units: Units by dotted name; only their number counts.
        sparsity: Fraction of units to remove, in [0, 1).
        min_units: Units that stay in every tensor (all of them, if it has fewer). What this protects is made up for by
            the others, in proportion to their size, so that the total stays what it is without. With 0 nothing is
            protected, and it is an error if that empties a tensor.

    Returns:
        Units to remove by dotted name; halves are rounded to the even number.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1), or `min_units` is negative or no whole number.
        InfeasibleError: Rounding would remove every unit of a small tensor, or more than `min_units` leaves.

    Example:
        >>> import torch
        >>> sizes = {"fc1.weight": (10, 4), "fc2.weight": (2, 10)}
        >>> units = {name: Units(torch.rand(a * b), torch.Size([a, b])) for name, (a, b) in sizes.items()}
        >>> uniform(units, 0.9), uniform(units, 0.9, min_units=3)
        ({'fc1.weight': 36, 'fc2.weight': 18}, {'fc1.weight': 37, 'fc2.weight': 17})
    """
    check_sparsity(sparsity)
    check_min_units(min_units)
    removed = {name: num_removed(each.num_units, sparsity) for name, each in units.items()}
    if min_units == 0:
        check_none_emptied(
            units,
            removed,
            by=f"uniform sparsity {sparsity:g}",
            fix="exclude=[…], or allocation=partial(allocation.uniform, min_units=1)",
        )
        return removed
    room = room_of(units, min_units, sum(removed.values()))
    if all(count <= room[name] for name, count in removed.items()):
        return removed
    sizes = [each.num_units for each in units.values()]
    stay = [size - most for size, most in zip(sizes, room.values(), strict=True)]
    kept = shared_out([float(size or 1) for size in sizes], stay, sizes, sum(sizes) - sum(removed.values()))
    return {name: size - count for name, size, count in zip(units, sizes, kept, strict=True)}
