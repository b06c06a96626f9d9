"""Uniform: the same sparsity everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from secateur._errors import InfeasibleError
from secateur._units import Units
from secateur.allocation._sparsity import check_sparsity, num_removed

__all__ = ["uniform"]


def uniform(units: Mapping[str, Units], sparsity: float) -> dict[str, int]:
    """Remove the same fraction of every tensor, ``round(sparsity * n)`` of its n units.

    Args:
        units: Units by dotted name; only their number counts.
        sparsity: Fraction of units to remove, in [0, 1).

    Returns:
        Units to remove by dotted name; halves are rounded to the even number.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1).
        InfeasibleError: Rounding would remove every unit of a small tensor.

    Example:
        >>> import torch
        >>> sizes = {"fc1.weight": (10, 4), "fc2.weight": (2, 10)}
        >>> units = {name: Units(torch.rand(a * b), torch.Size([a, b])) for name, (a, b) in sizes.items()}
        >>> uniform(units, 0.9)
        {'fc1.weight': 36, 'fc2.weight': 18}
    """
    check_sparsity(sparsity)
    removed = {name: num_removed(each.num_units, sparsity) for name, each in units.items()}
    for name, count in removed.items():
        if count and count == units[name].num_units:
            raise InfeasibleError(
                f"uniform sparsity {sparsity:g} would remove every unit of {name!r}.",
                units=count,
                shape=tuple(units[name].shape),
                fix=f"exclude=[{name!r}], or allocation=allocation.global_, which keeps at least one unit of each",
            )
    return removed
