"""What scores are, and the tables of them: those that need nothing but the weights, and those that run the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from secateur._names import Selectors
from secateur.scores._fisher import fisher
from secateur.scores._gradient_magnitude import gradient_magnitude
from secateur.scores._grasp import grasp
from secateur.scores._lamp import lamp
from secateur.scores._magnitude import magnitude
from secateur.scores._random import random
from secateur.scores._snip import snip
from secateur.scores._taylor import taylor
from secateur.scores._wanda import wanda

__all__ = ["DATA_SCORES", "SCORES", "DataScore", "Score"]

Score = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Rates every entry of named tensors: ``{dotted name: tensor} -> {dotted name: scores of the same shape}``.

Scores are real floating-point numbers without NaN; higher = kept. A score changes neither its input nor the global
random state. Settings are bound with `functools.partial`: ``partial(scores.random, seed=3)``.
"""


class DataScore(Protocol):
    """Rates the weights of a model on data; what it returns is given to `prune_` as ``score=…``.

    Scores are real floating-point numbers without NaN; higher = kept. Weights, gradients, train/eval flags, random
    state, buffers and hooks are afterwards as they were, also where an error is raised.

    Args:
        model: The model, in the mode in which it is to be scored.
        loss_fn: (model, batch) -> the loss, a scalar.
        batches: A list or a ``DataLoader``.
        include: Globs over dotted names, or module types; all weights if left out.
        steps: How many batches to take from the beginning; all if left out.
    """

    def __call__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        batches: Iterable[Any],
        /,
        *,
        include: Selectors = None,
        steps: int | None = None,
    ) -> dict[str, Tensor]:
        """Scores by dotted name."""
        ...


SCORES: dict[str, Score] = {"magnitude": magnitude, "random": random, "lamp": lamp}
"""The scores that take weights alone, by name; the contract tests run over this table."""

DATA_SCORES: dict[str, DataScore] = {
    "gradient_magnitude": gradient_magnitude,
    "taylor": taylor,
    "snip": snip,
    "grasp": grasp,
    "fisher": fisher,
    "wanda": wanda,
}
"""The scores that run the model on batches, by name; the contract tests run over this table."""
