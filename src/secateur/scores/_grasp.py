"""GraSP: keep the weights without which gradients would shrink; made for a network that was not trained yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from secateur._names import Selectors
from secateur._passes import LossFunction, some_of, untouched
from secateur._units import check_scores
from secateur._wrappers import unwrapped
from secateur.scores._chosen import chosen, precise, product
from secateur.scores._means import Weights, mean_over_batches, mean_terms
from secateur.scores._reach import gradients

__all__ = ["grasp"]


def grasp(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    include: Selectors = None,
    steps: int | None = None,
) -> dict[str, Tensor]:
    r"""Score every weight by what the squared norm of the gradient loses without it, :math:`s = w \odot H \bar g`.

    To first order :math:`\bar g^\top \bar g` changes by :math:`-2\,w_j (H \bar g)_j` if weight j goes. The paper's
    score has the other sign, and there the highest go; here, as everywhere, higher = kept. Scores are negative where a
    weight holds the gradient back. Gradient :math:`\bar g` and Hessian :math:`H` are those of the mean loss,
    with respect to the weights that are scored.

    Args:
        model: The model, in the mode in which it is to be scored, of operations that can be differentiated twice. Of a
            compiled one the loss function gets the model inside.
            Gradients, flags, random state and buffers are afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar. The paper divides the logits by 200.
        batches: A list or a ``DataLoader``; batches count equally. They are gone through twice, so they are held in
            memory meanwhile. The paper takes ten examples of each class.
        include: Globs over dotted names, or module types; all weights that are trained if left out (no biases, no
            norms), as in `prune_`.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        Scores by dotted name, of the shapes of the weights, in single precision or better; zero at masked places and
        where the gradient does not depend on a weight.

    Raises:
        InvalidInputError: There is no batch; the loss is no scalar or depends on none of the weights; a weight that is
            named is frozen; a score is NaN; inference mode. Nothing is changed then.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 2.0]]))
        >>> grasp(model, lambda m, x: m(x).square().sum() / 2, [torch.tensor([[1.0, -1.0]])])
        {'weight': tensor([[-2.,  4.]])}

    References:
        Wang, Zhang, Grosse 2020, "Picking winning tickets before training by preserving gradient flow", equation 8 and
        algorithm 1, with the sign turned.
    """
    weights = chosen(model, include)
    model = unwrapped(model)  # what torch.compile makes of it has no second derivative either
    with untouched(model), sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
        taken = list(some_of(batches, steps))
        gradient = mean_terms(model, weights, loss_fn, taken, None, lambda _, gradient: gradient)
        products = mean_over_batches(
            model, loss_fn, taken, None, lambda loss: _hessian_product(loss, weights, gradient)
        )
    scores = {
        name: product(values, products[name] if name in products else torch.zeros_like(values))
        for name, values in ((name, precise(weight)) for name, weight in weights.items())
    }
    check_scores(scores)
    return scores


def _hessian_product(loss: Tensor, weights: Weights, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Hessian of a loss times a vector, as a derivative of its gradient; nothing where that does not depend."""
    first = {name: each for name, each in gradients(loss, weights, create_graph=True).items() if each.requires_grad}
    if not first:
        return {}
    found = torch.autograd.grad(
        list(first.values()),
        list(weights.values()),
        [vector[name].to(each.dtype) for name, each in first.items()],
        allow_unused=True,
    )
    return {name: precise(each.to_dense()) for name, each in zip(weights, found, strict=True) if each is not None}
