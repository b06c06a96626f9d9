"""Fisher: what the loss would lose, to second order, if the weight went, at a minimum where the first order is zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from secateur._names import Selectors
from secateur._passes import LossFunction
from secateur._units import check_scores
from secateur.scores._chosen import chosen, precise, product
from secateur.scores._means import mean_terms

__all__ = ["fisher"]


def fisher(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by Optimal Brain Damage with the empirical Fisher, :math:`s = \frac12 w^2\, E_b\,g_b^2`.

    Optimal Brain Damage has the diagonal of the Hessian, :math:`\frac12 w^2 h`; here the diagonal of the empirical
    Fisher matrix stands for it, which it equals for a likelihood at its optimum. That matrix is a mean over examples:
    with batches of one example it is exact, with larger ones it is the square of means and thus smaller.

    Args:
        model: The model, best a trained one, in the mode in which it is to be scored. Gradients, flags, random state
            and buffers are afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar; a negative log-likelihood.
        batches: A list or a ``DataLoader``; batches count equally.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        Scores by dotted name, of the shapes of the weights, in double precision, since the squares of small gradients
        vanish in single precision; zero at masked places and where the loss does not depend on a weight.

    Raises:
        InvalidInputError: There is no batch; the loss is no scalar or depends on none of the weights; a weight that is
            named is frozen; a score is NaN; inference mode. Nothing is changed then.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> fisher(model, lambda m, x: m(x).sum(), [torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 8.0]])])
        {'weight': tensor([[1., 4.]], dtype=torch.float64)}

    References:
        LeCun, Denker, Solla 1989, "Optimal brain damage", the saliency of step 4 of the recipe; Theis, Korshunova,
        Tejani, Huszár 2018, "Faster gaze prediction with dense networks and Fisher pruning", section 2.
    """
    means = mean_terms(model, chosen(model, include), loss_fn, batches, steps, _squared)
    scores = {name: mean.div_(2) for name, mean in means.items()}
    check_scores(scores)
    return scores


def _squared(weight: Tensor, gradient: Tensor) -> Tensor:
    """The square of the first-order change, in double precision."""
    return product(precise(weight, torch.float64), precise(gradient, torch.float64)).square()
