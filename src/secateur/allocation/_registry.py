"""What an allocation is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from secateur._units import Units
from secateur.allocation._erdos_renyi import erdos_renyi, erk
from secateur.allocation._global import global_
from secateur.allocation._per_tensor import PerTensor
from secateur.allocation._uniform import uniform

__all__ = ["ALLOCATIONS", "Allocation"]

Allocation = Callable[[Mapping[str, Units], float], dict[str, int]]
"""Shares a sparsity in [0, 1) out: ``({dotted name: Units}, sparsity) -> {dotted name: units to remove}``.

The answer has the same names in the same order, and counts units, not entries: the lowest ones of each tensor are
meant. Settings are bound with `functools.partial`: ``partial(allocation.global_, min_units=8)``.
"""

ALLOCATIONS: dict[str, Allocation] = {
    "uniform": uniform,
    "erdos_renyi": erdos_renyi,
    "erk": erk,
    "global_": global_,
    "PerTensor": PerTensor(),
}
"""The allocations by name; the contract tests run over this table."""
