"""Norms of all that goes with a unit, and LAMP, which compares them within the group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from secateur.graph.coupling import Coupling
from secateur.shrink.unit_scores._sums import Scores, summed

__all__ = ["l1", "l2", "lamp"]


def l1(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Group L1 norm: :math:`\sum |w|` over all parameter entries that would go with the unit.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,).

    References:
        Li et al., Pruning Filters for Efficient ConvNets (2017); here over all tensors of the group.
    """
    return summed(model, coupling, lambda _, weight: weight.abs())


def l2(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Group L2 norm: :math:`\sqrt{\sum w^2}` over all parameter entries that would go with the unit.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,).

    References:
        Fang et al., DepGraph: Towards Any Structural Pruning (2023), group norm.
    """
    return np.sqrt(_squares(model, coupling))


def lamp(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Squared norm as a share of those of the group that are no smaller: :math:`w_u^2 / \sum_{w_v^2 ≥ w_u^2} w_v^2`.

    The best unit of a group scores 1 (or a share of it, where several are equally good).

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,); the squared group norm for classes that are in no group.

    References:
        Lee et al., Layer-Adaptive Sparsity for the Magnitude-Based Pruning (2021); here with the squares of a
        whole unit in place of a weight's.
    """
    scores = _squares(model, coupling)
    for group in coupling.groups:
        units = np.array(group.units)
        own = scores[units]
        ascending = np.sort(own)
        from_here = np.cumsum(ascending[::-1])[::-1]  # of each and all larger ones
        rivals = from_here[np.searchsorted(ascending, own, side="left")]
        scores[units] = np.divide(own, rivals, out=np.zeros_like(own), where=rivals > 0)
    return scores


def _squares(model: nn.Module, coupling: Coupling) -> Scores:
    """Sum of squares of all that goes with each class."""
    return summed(model, coupling, _Squares())


class _Squares:
    """The square of every entry, in memory that is used again: making new memory takes longer than to multiply."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def __call__(self, _: str, weight: Tensor) -> Tensor:
        """The squares, until the next call."""
        room = self._room
        if room.numel() < weight.numel() or (room.dtype, room.device) != (weight.dtype, weight.device):
            self._room = room = weight.new_empty(weight.numel())
        return torch.mul(weight, weight, out=room[: weight.numel()].view(weight.shape))
