"""Means over batches of what the gradients of the user's loss tell, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._passes import LossFunction, loss_on, some_of, untouched
from secateur.scores._chosen import precise
from secateur.scores._reach import gradients

__all__ = ["Weights", "mean_over_batches", "mean_terms"]

Weights = Mapping[str, nn.Parameter]
"""The weights that are scored, by first dotted names."""


def mean_over_batches(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    steps: int | None,
    terms: Callable[[Tensor], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """The mean over batches of what `terms` makes of the loss on each; no graph outlives its batch.

    Args:
        model: The model; gradients, flags, random state and buffers are afterwards as they were.
        loss_fn: (model, batch) -> the loss, a scalar.
        batches: A list or a DataLoader.
        steps: How many batches to take; all if left out.
        terms: loss -> tensors by name; a name that is missing counts as zero.

    Returns:
        Means by name, of the names for which there was a term.

    Raises:
        InvalidInputError: There is no batch, or `loss_fn` returns no scalar with a gradient.
    """
    totals: dict[str, Tensor] = {}
    number = 0
    with untouched(model):
        for batch in some_of(batches, steps):
            for name, term in terms(loss_on(model, loss_fn, batch)).items():
                totals.setdefault(name, term.new_zeros(term.shape)).add_(term)
            number += 1
    return {name: total.div_(number) for name, total in totals.items()}


def mean_terms(
    model: nn.Module,
    weights: Weights,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    steps: int | None,
    term: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """The mean over batches of a term for each weight and its gradient.

    Args:
        model: As for `mean_over_batches`, as `loss_fn`, `batches` and `steps`.
        weights: The weights to score, by name.
        loss_fn: The user's.
        batches: The user's.
        steps: The user's.
        term: (weight, gradient), both in single precision or better -> a term of the same shape, 0 where there is no
            gradient.

    Returns:
        Means by name, in the order of `weights`; zero for those of which no loss depended.

    Raises:
        InvalidInputError: The loss depends on none of the weights.
    """

    def terms(loss: Tensor) -> dict[str, Tensor]:
        found = gradients(loss, weights)
        return {name: term(precise(weights[name]), precise(gradient)) for name, gradient in found.items()}

    means = mean_over_batches(model, loss_fn, batches, steps, terms)
    if not means:
        raise InvalidInputError(
            "the loss depends on none of the weights to be scored.",
            weights=", ".join(list(weights)[:8]),
            fix="the loss must be computed from what the model that is passed to the loss function returns",
        )
    return {name: means[name] if name in means else _none(weight, term) for name, weight in weights.items()}


def _none(weight: Tensor, term: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The term of a weight that has no gradient."""
    values = precise(weight)
    return term(values, torch.zeros_like(values))
