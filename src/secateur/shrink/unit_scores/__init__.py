"""What a unit is worth: one number for every unit, from all that would go with it; higher = kept.

How the tensors of a group are combined: every entry that goes with a unit, of every parameter and along every dim,
gives a term (``|w|``, ``w²``, ``w·g``), the terms are added up, and the score is a function of the sum. A layer thus
counts by what it would lose, whether it makes the unit or reads it. How groups are made to compete: `plan_shrink`
divides every score by the mean over its group where units of several groups are compared; within one group only the
order counts.
"""

from __future__ import annotations

from secateur.shrink.unit_scores._activations import activation_mean, activation_variance
from secateur.shrink.unit_scores._batch_norm import batch_norm_scale
from secateur.shrink.unit_scores._gradients import fisher, over_batches, taylor
from secateur.shrink.unit_scores._median import fpgm
from secateur.shrink.unit_scores._norms import l1, l2, lamp
from secateur.shrink.unit_scores._random import random
from secateur.shrink.unit_scores._registry import DATA_SCORES, UNIT_SCORES
from secateur.shrink.unit_scores._sums import UnitScore, check_score

__all__ = [
    "DATA_SCORES",
    "UNIT_SCORES",
    "UnitScore",
    "activation_mean",
    "activation_variance",
    "batch_norm_scale",
    "check_score",
    "fisher",
    "fpgm",
    "l1",
    "l2",
    "lamp",
    "over_batches",
    "random",
    "taylor",
]
