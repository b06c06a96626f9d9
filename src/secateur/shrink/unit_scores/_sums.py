"""Sums over everything that goes with a unit, which most scores are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling
from secateur.graph.labels import Axis, Dim
from secateur.graph.solve import FIXED
from secateur.shrink.values import numbers_in

__all__ = ["Scores", "UnitScore", "add_along", "check_score", "handed_up", "summed"]

Scores = npt.NDArray[np.float64]

UnitScore = Callable[[nn.Module, Coupling], Scores]
"""(model, coupling) -> one score for every class of labels; those of units count. Higher = kept, infinite = stays."""


def check_score(score: object) -> None:
    """Refuse what is no unit score.

    Raises:
        InvalidInputError: It cannot be called.
    """
    if not callable(score):
        raise InvalidInputError(
            "score=… is a function of the model and its coupling.",
            given=score,
            fix="score=secateur.shrink.l1, or another of secateur.shrink.UNIT_SCORES",
        )


def summed(model: nn.Module, coupling: Coupling, entry: Callable[[str, Tensor], Tensor]) -> Scores:
    """Sum a function of the entries over everything that goes with each class, the classes that follow it included.

    Args:
        model: The model that was analysed.
        coupling: Its coupling.
        entry: (name, the parameter in single precision or better) -> a term for every entry, in the parameter's shape.

    Returns:
        Shape (classes,); of classes that stay, some are left out.
    """
    total = np.zeros(len(coupling.solution.parents))
    parameters: Mapping[str, Tensor] = dict(model.named_parameters())
    for name in sorted(coupling.parameters):
        dims, weight = coupling.dims[name], parameters[name].detach()
        loses = [any(_loses(coupling, axis) for axis in dim) for dim in dims]
        if not any(loses):
            continue
        terms = entry(name, weight if weight.dtype == torch.float64 else weight.float())
        last = max(d for d, wanted in enumerate(loses) if wanted)
        if last < terms.dim() - 1:  # the window of a convolution, which is in one piece
            terms = terms.flatten(last + 1).sum(-1)
        for d, dim in enumerate(dims):
            if loses[d]:
                others = [other for other in range(terms.dim()) if other != d]
                add_along(coupling, dim, terms.sum(dim=others) if others else terms, total)
    return handed_up(coupling, total)


def _loses(coupling: Coupling, axis: Axis) -> bool:
    """Whether some position of an axis can go."""
    return not axis.is_fixed and not coupling.solution.blocked[coupling.solution.classes(axis)].all()


def add_along(coupling: Coupling, dim: Dim, values: Tensor, total: Scores) -> None:
    """Add a value for every position of a dim to the classes of that position, in place.

    Args:
        coupling: The coupling.
        dim: Labels of the dim.
        values: Shape (positions,).
        total: Shape (classes,).
    """
    shaped = numbers_in(values).reshape([axis.size for axis in dim] or [1])
    for a, axis in enumerate(dim):
        classes = coupling.solution.classes(axis)
        along = shaped.sum(axis=tuple(other for other in range(shaped.ndim) if other != a))
        labelled = classes != FIXED
        np.add.at(total, classes[labelled], along[labelled])


def handed_up(coupling: Coupling, total: Scores) -> Scores:
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
