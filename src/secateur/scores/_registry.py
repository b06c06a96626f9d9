"""What a score is, and the table of those that need nothing but the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from secateur.scores._magnitude import magnitude
from secateur.scores._random import random

__all__ = ["SCORES", "Score"]

Score = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Rates every entry of named tensors: ``{dotted name: tensor} -> {dotted name: scores of the same shape}``.

Scores are real floating-point numbers without NaN; higher = kept. A score changes neither its input nor the global
random state. Settings are bound with `functools.partial`: ``partial(scores.random, seed=3)``.
"""

SCORES: dict[str, Score] = {"magnitude": magnitude, "random": random}
"""The scores that take weights alone, by name; the contract tests run over this table."""
