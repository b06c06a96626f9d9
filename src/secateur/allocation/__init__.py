"""Allocations: how much of each tensor goes. An allocation shares one sparsity out among named tensors, exactly."""

from __future__ import annotations

from secateur._units import Units
from secateur.allocation._erdos_renyi import erdos_renyi, erk
from secateur.allocation._global import global_
from secateur.allocation._per_tensor import PerTensor
from secateur.allocation._registry import ALLOCATIONS, Allocation
from secateur.allocation._uniform import uniform

__all__ = ["ALLOCATIONS", "Allocation", "PerTensor", "Units", "erdos_renyi", "erk", "global_", "uniform"]
