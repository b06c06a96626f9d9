"""Random: every unit is as likely to go as any other. The baseline that a score has to beat."""

from __future__ import annotations

import numpy as np
from torch import nn

from secateur.graph.coupling import Coupling
from secateur.shrink.unit_scores._sums import Scores

__all__ = ["random"]


def random(model: nn.Module, coupling: Coupling, *, seed: int = 0) -> Scores:
    """Uniform random scores from a generator of their own.

    Args:
        model: Not looked at.
        coupling: Only its number of classes is used.
        seed: Seed; the same seed gives the same scores.

    Returns:
        Shape (classes,).
    """
    del model
    return np.random.default_rng(seed).random(len(coupling.solution.parents))
