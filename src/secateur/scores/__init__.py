"""Scores: how much an entry is worth keeping; higher = kept.

A `Score` maps named tensors to named tensors. A `DataScore` runs the model on batches and returns scores by name, which
`prune_` takes as they are. `synflow` needs the shape of an input alone, `Movement` watches a training run.
"""

from __future__ import annotations

from secateur.scores._fisher import fisher
from secateur.scores._gradient_magnitude import gradient_magnitude
from secateur.scores._grasp import grasp
from secateur.scores._lamp import lamp
from secateur.scores._magnitude import magnitude
from secateur.scores._movement import Movement
from secateur.scores._random import random
from secateur.scores._registry import DATA_SCORES, SCORES, DataScore, Score
from secateur.scores._snip import snip
from secateur.scores._synflow import synflow
from secateur.scores._taylor import taylor
from secateur.scores._wanda import wanda

__all__ = [
    "DATA_SCORES",
    "SCORES",
    "DataScore",
    "Movement",
    "Score",
    "fisher",
    "gradient_magnitude",
    "grasp",
    "lamp",
    "magnitude",
    "random",
    "snip",
    "synflow",
    "taylor",
    "wanda",
]
