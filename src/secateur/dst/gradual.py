"""Gradual: the sparsity rises as training goes on, and nothing is grown."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur import scores
from secateur.allocation import uniform
from secateur.dst.timetable import approach
from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers
from secateur.schedules import Curve, cubic
from secateur.scores import Score

__all__ = ["Gradual"]


class Gradual(SparseTraining):
    """Gradual pruning: from dense to sparse along a curve, the smallest weights going first, for good.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in the end, in [0, 1).
        end_step: The last change is made at the last multiple of `every` after `begin_step` that is not beyond this,
            and reaches the sparsity exactly.
        every: Steps from one change to the next.
        begin_step: The step at which the sparsity begins to rise.
        initial_sparsity: Fraction of zeros up to there.
        curve: How it rises.
        score: What a weight is worth; the lowest go.
        **shared: Arguments that every method takes; see `SparseTraining`. The allocation is uniform if left out.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> training = Gradual(nn.Linear(20, 10), sparsity=0.9, every=100, end_step=1000)
        >>> training.masks.sparsity(), training.next_step
        (0.0, 100)

    References:
        Zhu and Gupta 2017, "To prune, or not to prune: exploring the efficacy of pruning for model compression".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        sparsity: float,
        end_step: int,
        every: int = 100,
        begin_step: int = 0,
        initial_sparsity: float = 0.0,
        curve: Curve = cubic,
        score: Score = scores.magnitude,
        **shared: Unpack[Shared],
    ) -> None:
        shared.setdefault("start", scores.magnitude)
        shared.setdefault("allocation", uniform)
        super().__init__(
            model,
            optimizer,
            sparsity=approach(curve, initial_sparsity, sparsity, every=every, begin_step=begin_step, end_step=end_step),
            end_step=end_step,
            every=every,
            begin_step=begin_step,
            drop=score,
            uses_gradients=False,
            **shared,
        )
