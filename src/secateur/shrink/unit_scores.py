"""What a unit is worth, from the slices of all tensors that it touches; higher = kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling
from secateur.graph.solve import FIXED

__all__ = ["UnitScore", "batch_norm_scale", "fpgm", "l1", "l2", "random", "taylor"]

Scores = npt.NDArray[np.float64]

UnitScore = Callable[[nn.Module, Coupling], Scores]
"""(model, coupling) -> one score for every class of labels; those of units count. Higher = kept, infinite = stays."""


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
    return np.sqrt(_summed(model, coupling, lambda _, weight: weight.square()))


def l1(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Group L1 norm: :math:`\sum |w|` over all parameter entries that would go with the unit.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.

    Returns:
        Shape (classes,).
    """
    return _summed(model, coupling, lambda _, weight: weight.abs())


def taylor(model: nn.Module, coupling: Coupling) -> Scores:
    r"""First-order change of the loss if the unit went: :math:`|\sum w g|` over all entries that would go with it.

    Args:
        model: The model that was analysed, with the gradients of your loss in ``.grad`` (over as many batches as you
            like: ``loss.backward()`` for each).
        coupling: Its coupling.

    Returns:
        Shape (classes,).

    Raises:
        InvalidInputError: No parameter has a gradient.

    References:
        Molchanov et al., Importance Estimation for Neural Network Pruning (2019), eq. 8 without the square.
    """
    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    if all(gradient is None for gradient in gradients.values()):
        raise InvalidInputError(
            "the Taylor score needs gradients, and no parameter has one.", fix="loss_fn(model(x), y).backward() first"
        )

    def change(name: str, weight: Tensor) -> Tensor:
        gradient = gradients[name]
        return torch.zeros_like(weight) if gradient is None else weight * gradient.detach().double()

    return np.abs(_summed(model, coupling, change))


def batch_norm_scale(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Scale of BatchNorm: :math:`\sum |\gamma|` over the norms that the unit passes; units that pass none stay.

    Args:
        model: The model that was analysed, best trained with an L1 penalty on the scales.
        coupling: Its coupling.

    Returns:
        Shape (classes,); infinite for units without a BatchNorm.

    Raises:
        InvalidInputError: No BatchNorm in the model has a scale.

    References:
        Liu et al., Learning Efficient Convolutional Networks through Network Slimming (2017).
    """
    scales = {
        f"{prefix}.weight" if prefix else "weight"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine
    } & coupling.parameters
    if not scales:
        raise InvalidInputError("no BatchNorm in the model has a scale to score by.", fix="score=shrink.l2")
    total = _summed(model, coupling, lambda name, weight: weight.abs() * (name in scales))
    passed = _summed(model, coupling, lambda name, weight: torch.full_like(weight, name in scales))
    return np.where(passed > 0, total, np.inf)


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
                weight = parameters[name].detach().double().cpu()
                rows = [weight[(slice(None),) * dim + (_taken(coupling, u, name, dim),)] for u in group.units]
                squared += torch.cdist(*(torch.stack([row.reshape(-1) for row in rows]),) * 2,
                                       compute_mode="donot_use_mm_for_euclid_dist").square()  # fmt: skip
        scores[list(group.units)] = squared.sqrt().sum(dim=1).numpy()
    return scores


def _taken(coupling: Coupling, unit: int, name: str, dim: int) -> Tensor:
    """Positions of a dim that go with a unit."""
    solution = coupling.solution
    kept = solution.kept(coupling.dims[name][dim], solution.removed([unit]))
    return torch.from_numpy(np.nonzero(~kept)[0])


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


def _summed(model: nn.Module, coupling: Coupling, entry: Callable[[str, Tensor], Tensor]) -> Scores:
    """Sum a function of the entries over everything that goes with each class, the classes that follow it included."""
    number = len(coupling.solution.parents)
    total = np.zeros(number)
    parameters: Mapping[str, Tensor] = dict(model.named_parameters())
    for name in sorted(coupling.parameters):
        values = entry(name, parameters[name].detach().double())
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
