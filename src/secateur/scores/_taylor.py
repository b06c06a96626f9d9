"""Taylor: what the loss would lose, to first order, if the weight went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from secateur._names import Selectors
from secateur._passes import LossFunction
from secateur._units import check_scores
from secateur.scores._chosen import chosen, product
from secateur.scores._means import mean_terms

__all__ = ["taylor"]


def taylor(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by the first-order change of the loss without it, :math:`s = E_b\,|w\,g_b|` over batches.

    `snip` takes the absolute value after the mean instead, so that batches which pull a weight in opposite directions
    cancel there and add up here.

    Args:
        model: The model, in the mode in which it is to be scored. Gradients, flags, random state and buffers are
            afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar.
        batches: A list or a ``DataLoader``; batches count equally.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        Scores by dotted name, of the shapes of the weights, in single precision or better; zero at masked places and
        where the loss does not depend on a weight.

    Raises:
        InvalidInputError: There is no batch; the loss is no scalar or depends on none of the weights; a weight that is
            named is frozen; a score is NaN; inference mode. Nothing is changed then.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> taylor(model, lambda m, x: m(x).sum(), [torch.tensor([[3.0, 4.0]]), torch.tensor([[-3.0, 0.0]])])
        {'weight': tensor([[1.5000, 1.0000]])}

    References:
        Molchanov, Mallya, Tyree, Frosio, Kautz 2019, "Importance estimation for neural network pruning", equation 8,
        without the square.
    """
    scores = mean_terms(
        model, chosen(model, include), loss_fn, batches, steps, lambda weight, gradient: product(weight, gradient).abs()
    )
    check_scores(scores)
    return scores
