"""What a unit is worth, from the slices of all tensors that it touches; higher = kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur.graph.coupling import Coupling
from secateur.graph.solve import FIXED

__all__ = ["UnitScore", "l1", "l2", "random"]

Scores = npt.NDArray[np.float64]

UnitScore = Callable[[nn.Module, Coupling], Scores]
"""(model, coupling) -> one score for every class of labels; those of units count. Higher = kept."""


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
    return np.sqrt(_summed(model, coupling, lambda weight: weight.square()))


def l1(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Group L1 norm: :math:`\sum |w|` over all parameter entries that would go with the unit.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,).
    """
    return _summed(model, coupling, torch.abs)


def random(model: nn.Module, coupling: Coupling, *, seed: int = 0) -> Scores:
    """Uniform random scores from a generator of their own.

    Args:
        model: Not looked at.
        coupling: Only its number of classes is used.
        seed: Seed; the same seed gives the same scores.

    Returns:
        Shape (classes,).
    """
    del model
    return np.random.default_rng(seed).random(len(coupling.solution.parents))


def _summed(model: nn.Module, coupling: Coupling, entry: Callable[[Tensor], Tensor]) -> Scores:
    """Sum a function of the entries over everything that goes with each class, the classes that follow it included."""
    number = len(coupling.solution.parents)
    total = np.zeros(number)
    parameters: Mapping[str, Tensor] = dict(model.named_parameters())
    for name in sorted(coupling.parameters):
        values = entry(parameters[name].detach().double())
        for d, dim in enumerate(coupling.dims[name]):
            others = [other for other in range(values.dim()) if other != d]
            here = values.sum(dim=others) if others else values
            shaped = here.cpu().numpy().reshape([axis.size for axis in dim] or [1])
            for a, axis in enumerate(dim):
                classes = coupling.solution.classes(axis)
                along = shaped.sum(axis=tuple(other for other in range(shaped.ndim) if other != a))
                labelled = classes != FIXED
                np.add.at(total, classes[labelled], along[labelled])
    return _handed_up(coupling, total)


def _handed_up(coupling: Coupling, total: Scores) -> Scores:
    """Give the sums of derived classes to their parents as well: they go when a parent goes."""
    parents = coupling.solution.parents
    pending, result = total.copy(), total.copy()
    for _ in range(64):
        following = np.zeros_like(pending)
        for part in range(2):
            has = (parents[:, part] != FIXED) & (pending != 0)
            np.add.at(following, parents[has, part], pending[has])
        if not following.any():
            break
        result += following
        pending = following
    return result
