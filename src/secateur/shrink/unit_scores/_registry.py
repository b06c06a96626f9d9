"""The tables of unit scores; the tests run over them, so a new member joins by its row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from secateur.shrink.unit_scores._activations import activation_mean, activation_variance
from secateur.shrink.unit_scores._batch_norm import batch_norm_scale
from secateur.shrink.unit_scores._gradients import fisher, over_batches, taylor
from secateur.shrink.unit_scores._median import fpgm
from secateur.shrink.unit_scores._norms import l1, l2, lamp
from secateur.shrink.unit_scores._random import random
from secateur.shrink.unit_scores._sums import UnitScore

__all__ = ["DATA_SCORES", "UNIT_SCORES"]

UNIT_SCORES: dict[str, UnitScore] = {
    "l1": l1,
    "l2": l2,
    "lamp": lamp,
    "taylor": taylor,
    "fisher": fisher,
    "batch_norm_scale": batch_norm_scale,
    "fpgm": fpgm,
    "random": random,
}
"""The scores of a model as it stands, by name: from its weights, some from the gradients in ``.grad`` too."""

DATA_SCORES: dict[str, Callable[..., UnitScore]] = {
    "activation_mean": activation_mean,
    "activation_variance": activation_variance,
    "taylor": partial(over_batches, taylor),
    "fisher": partial(over_batches, fisher),
}
"""The scores that run the model, by name: ``(loss function, batches, steps=…) -> score``."""
