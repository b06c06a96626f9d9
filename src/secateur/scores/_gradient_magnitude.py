"""Gradient magnitude: what the loss hardly feels goes first, whatever the weight's own size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from secateur._names import Selectors
from secateur._passes import LossFunction
from secateur._units import check_scores
from secateur.scores._chosen import chosen
from secateur.scores._means import mean_terms

__all__ = ["gradient_magnitude"]


def gradient_magnitude(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by the absolute gradient of the mean loss, :math:`s = |\bar g|`.

    It does not look at the weight, so weights that are masked, and zero, have scores of their own: those of the dense
    gradient, by which RigL grows.

    Args:
        model: The model, in the mode in which it is to be scored. Gradients, flags, random state and buffers are
            afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar.
        batches: A list or a ``DataLoader``; batches count equally.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        Scores by dotted name, of the shapes of the weights, in single precision or better; zero where the loss does not
        depend on a weight.

    Raises:
        InvalidInputError: There is no batch; the loss is no scalar or depends on none of the weights; a weight that is
            named is frozen; a score is NaN; inference mode. Nothing is changed then.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> gradient_magnitude(model, lambda m, x: m(x).sum(), [torch.tensor([[3.0, -4.0]])])
        {'weight': tensor([[3., 4.]])}

    References:
        Evci, Gale, Menick, Castro, Elsen 2020, "Rigging the lottery: making all tickets winners", section 3.
    """
    means = mean_terms(model, chosen(model, include), loss_fn, batches, steps, lambda _, gradient: gradient)
    scores = {name: mean.abs() for name, mean in means.items()}
    check_scores(scores)
    return scores
