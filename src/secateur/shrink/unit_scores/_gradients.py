"""What the loss would lose with a unit, from gradients: Taylor and diagonal Fisher, as they are or over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._passes import LossFunction, loss_on, some_of, untouched
from secateur.graph.coupling import Coupling
from secateur.shrink.unit_scores._sums import Scores, UnitScore, summed

__all__ = ["fisher", "over_batches", "taylor"]


def taylor(model: nn.Module, coupling: Coupling) -> Scores:
    r"""First-order change of the loss if the unit went: :math:`|\sum w g|` over all entries that would go with it.

    Args:
        model: The model that was analysed, with the gradients of your loss in ``.grad`` (over as many batches as you
            like: ``loss.backward()`` for each). `over_batches` computes them for you.
        coupling: Its coupling.

    Returns:
        Shape (classes,). Parameters without a gradient count as zero.

    Raises:
        InvalidInputError: No parameter has a gradient.

    References:
        Molchanov et al., Importance Estimation for Neural Network Pruning (2019), eq. 8 without the square.
    """
    change = _gradients(model, "Taylor")
    return np.abs(summed(model, coupling, lambda name, weight: weight * change(name, weight)))


def fisher(model: nn.Module, coupling: Coupling) -> Scores:
    r"""Second-order change of the loss if the unit went: :math:`\frac12 \sum w^2 g^2` over all that would go with it.

    The squared gradient of one batch stands for the diagonal of the Fisher matrix; `over_batches` takes the mean of
    many. With one example a batch that is the empirical Fisher matrix itself.

    Args:
        model: The model that was analysed, with the gradients of your loss in ``.grad``.
        coupling: Its coupling.

    Returns:
        Shape (classes,). Parameters without a gradient count as zero.

    Raises:
        InvalidInputError: No parameter has a gradient.

    References:
        Theis et al., Faster Gaze Prediction with Dense Networks and Fisher Pruning (2018); here the diagonal.
    """
    change = _gradients(model, "Fisher")
    return 0.5 * summed(model, coupling, lambda name, weight: (weight * change(name, weight)).square())


def over_batches(
    score: UnitScore,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    steps: int | None = None,
) -> UnitScore:
    """The mean of a gradient score over batches, each with the gradients of your loss on it alone.

    Gradients, buffers, torch's random state and the train/eval flags are afterwards as they were, and no hook that
    waits for an accumulated gradient (an optimizer that steps in backward) is called.

    Args:
        score: A score that reads ``.grad``: `taylor`, `fisher`, or your own.
        loss_fn: (model, batch) -> the loss, a scalar. The model is in the mode in which it is found.
        batches: What can be iterated anew for every plan: a ``DataLoader``, a list. An iterator would be used up.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        The score, for ``score=…``.

    Raises:
        InvalidInputError: When it is used: there is no batch, or `loss_fn` returns no scalar with a gradient.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        >>> batches = [(torch.randn(8, 4), torch.randn(8, 2))]
        >>> score = over_batches(fisher, lambda m, batch: nn.functional.mse_loss(m(batch[0]), batch[1]), batches)
        >>> from secateur import plan_shrink
        >>> [group.after for group in plan_shrink(model, batches[0][0], sparsity=0.5, score=score).groups]
        [3]
    """

    def mean(model: nn.Module, coupling: Coupling) -> Scores:
        with untouched(model):
            total, number = np.zeros(len(coupling.solution.parents)), 0
            for batch in some_of(batches, steps):
                _differentiate(model, loss_fn, batch)
                total += score(model, coupling)
                number += 1
        return total / number

    return mean


def _differentiate(model: nn.Module, loss_fn: LossFunction, batch: Any) -> None:
    """Put the gradients of the loss on one batch into ``.grad``, without a backward pass that accumulates."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = loss_on(model, loss_fn, batch)
    for parameter in model.parameters():
        parameter.grad = None
    for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
        parameter.grad = gradient


def _gradients(model: nn.Module, title: str) -> Callable[[str, Tensor], Tensor]:
    """(name, weight) -> its gradient in double precision, zeros where there is none."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if all(gradient is None for gradient in gradients.values()):
        raise InvalidInputError(
            f"the {title} score needs gradients, and no parameter has one.",
            fix=f"loss_fn(model(x), y).backward() first, or over_batches(shrink.{title.lower()}, loss_fn, loader)",
        )

    def gradient_of(name: str, weight: Tensor) -> Tensor:
        gradient = gradients[name]
        return torch.zeros_like(weight) if gradient is None else gradient.detach().to_dense().double()

    return gradient_of
