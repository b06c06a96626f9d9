"""Scores: how much an entry is worth keeping. A score maps named tensors to named tensors; higher = kept."""

from __future__ import annotations

from secateur.scores._magnitude import magnitude
from secateur.scores._random import random
from secateur.scores._registry import SCORES, Score

__all__ = ["SCORES", "Score", "magnitude", "random"]
