"""Geometric median: a unit near the middle of its group can be replaced by the others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from secateur.graph.coupling import Coupling
from secateur.shrink.unit_scores._sums import Scores
from secateur.shrink.values import numbers_in

__all__ = ["fpgm"]


def fpgm(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Distance to all other units of the group: :math:`\sum_j \lVert w_i - w_j \rVert_2`, small near their median.

    The slices of all parameters that go with a unit, laid end to end, are its :math:`w_i`.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,).

    References:
        He et al., Filter Pruning via Geometric Median (2019), eq. 7; here over all tensors of the group.
    """
    scores = np.zeros(len(coupling.solution.parents))
    parameters = dict(model.named_parameters())
    for group in coupling.groups:
        squared = torch.zeros(len(group.units), len(group.units), dtype=torch.float64)
        for name, dim in group.footprint:
            if name in parameters:
                weight = torch.from_numpy(numbers_in(parameters[name].detach()))
                rows = [weight[(slice(None),) * dim + (_taken(coupling, u, name, dim),)] for u in group.units]
                squared += _distances(torch.stack([row.reshape(-1) for row in rows])).square()
        scores[list(group.units)] = squared.sqrt().sum(dim=1).numpy()
    return scores


def _distances(rows: Tensor) -> Tensor:
    """Euclidean distance of every row to every other, exact for near ones; shape (rows, rows)."""
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


def _taken(coupling: Coupling, unit: int, name: str, dim: int) -> Tensor:
    """Positions of a dim that go with a unit."""
    solution = coupling.solution
    kept = solution.kept(coupling.dims[name][dim], solution.removed([unit]))
    return torch.from_numpy(np.nonzero(~kept)[0])
