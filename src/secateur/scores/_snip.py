"""SNIP: how much the loss feels that a connection is there at all; made for a network that was not trained yet."""

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

__all__ = ["snip"]


def snip(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by its share of the connection sensitivities, :math:`|w_j \bar g_j| / \sum_k |w_k \bar g_k|`.

    With a switch :math:`c_j` on every connection, :math:`w_j \bar g_j` is the derivative of the mean loss by the switch
    where all are on. Scores of all weights add up to 1, so compare them across tensors: ``allocation.global_``.

    Args:
        model: The model, in the mode in which it is to be scored. Gradients, flags, random state and buffers are
            afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar.
        batches: A list or a ``DataLoader``; batches count equally.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.
        steps: How many batches to take from the beginning; all if left out. The paper takes one.

    Returns:
        Scores by dotted name, of the shapes of the weights, in single precision or better; zero at masked places and
        where the loss does not depend on a weight. All zero if all sensitivities are.

    Raises:
        InvalidInputError: There is no batch; the loss is no scalar or depends on none of the weights; a weight that is
            named is frozen; a score is NaN; inference mode. Nothing is changed then.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> snip(model, lambda m, x: m(x).sum(), [torch.tensor([[3.0, -1.0]])])
        {'weight': tensor([[0.7500, 0.2500]])}

    References:
        Lee, Ajanthan, Torr 2019, "SNIP: single-shot network pruning based on connection sensitivity", equations 4, 5.
    """
    weights = chosen(model, include)
    means = mean_terms(model, weights, loss_fn, batches, steps, lambda _, gradient: gradient)
    scores = {name: product(precise(weights[name]), mean).abs() for name, mean in means.items()}
    check_scores(scores)
    total = sum(float(score.sum(dtype=torch.float64)) for score in scores.values())
    shares = {name: score / (total or 1.0) for name, score in scores.items()}
    check_scores(shares)
    return shares
