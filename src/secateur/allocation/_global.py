"""Global: the lowest units go, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping

from secateur._units import Units, check_scores, lowest_counts
from secateur.allocation._sparsity import check_none_emptied, check_sparsity, num_removed, num_units, room_of

__all__ = ["global_"]


def global_(units: Mapping[str, Units], sparsity: float, *, min_units: int = 1) -> dict[str, int]:
    """Remove the lowest units of all tensors together, ``round(sparsity * total)`` of them, exactly.

    Raw scores are compared, so they should mean the same in every tensor: `secateur.scores.lamp` makes magnitudes so,
    and the two together are what its authors call LAMP. The total counts units, also where those of
    different tensors differ in size. Of equal scores the first goes first: by the order of the names given, then by
    position.

    Args:
        units: Units by dotted name; their order settles ties.
        sparsity: Fraction of all units to remove, in [0, 1).
        min_units: Units that stay in every tensor (all of them, if it has fewer). What this protects is made up for by
            the next lowest units of the other tensors, so that the total stays exact. With 0 nothing is protected,
            and it is an error if that empties a tensor.

    Returns:
        Units to remove by dotted name.

    Raises:
        InvalidInputError: `sparsity` is not in [0, 1), `min_units` is negative or no whole number, or a score is NaN.
        InfeasibleError: `min_units` leaves fewer units to remove than were asked for, or with ``min_units=0`` a tensor
            would lose every unit.

    Example:
        >>> import torch
        >>> scores = {"0.weight": [5.0, 6.0, 7.0, 8.0], "2.weight": [0.1, 0.2], "4.weight": [4.0, 9.0]}
        >>> units = {name: Units(torch.tensor(s), torch.Size([len(s)])) for name, s in scores.items()}
        >>> global_(units, 0.5)
        {'0.weight': 2, '2.weight': 1, '4.weight': 1}
    """
    check_sparsity(sparsity)
    check_scores({name: each.scores for name, each in units.items()})
    total = num_removed(num_units(units.values()), sparsity)
    removed = _fill(units, room_of(units, min_units, total), total)
    if min_units == 0:
        check_none_emptied(
            units, removed, by=f"global sparsity {sparsity:g}", fix="min_units=1 leaves a unit in each tensor"
        )
    return removed


def _fill(units: Mapping[str, Units], room: Mapping[str, int], total: int) -> dict[str, int]:
    """Share the total out by score; tensors whose room is exceeded are filled up and leave the rest to the others."""
    full: dict[str, int] = {}
    while True:
        others = [name for name in units if name not in full]
        counts = lowest_counts([units[name].scores for name in others], total - sum(full.values()))
        over = {name: room[name] for name, count in zip(others, counts, strict=True) if count > room[name]}
        if not over:
            shared = full | dict(zip(others, counts, strict=True))
            return {name: shared[name] for name in units}
        full |= over
