"""GraNet: the sparsity rises as training goes on, and at each change some of the weights are exchanged as well."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur import scores
from secateur.allocation import global_
from secateur.dst.ratings import gradient
from secateur.dst.timetable import approach, decaying
from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers
from secateur.schedules import Curve, Schedule, cubic

__all__ = ["GraNet"]


class GraNet(SparseTraining):
    r"""Gradual pruning with neuroregeneration: smallest weights go as the sparsity rises, and some are regrown.

    At each change the smallest weights are dropped down to the sparsity that is due, and of those that are left a
    fraction is exchanged for masked ones with the largest gradients.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in the end, in [0, 1).
        end_step: The last change is made at the last multiple of `every` after `begin_step` that is not beyond this,
            and reaches the sparsity exactly.
        every: Steps from one change to the next.
        begin_step: The step at which the sparsity begins to rise.
        initial_sparsity: Fraction of zeros up to there, chosen at random; 0 starts dense.
        curve: How it rises.
        drop_fraction: Fraction of the kept weights that would be exchanged at step 0, which decays along a cosine; or a
            schedule of the fraction.
        **shared: Arguments that every method takes; see `SparseTraining`. The allocation is global if left out, so that
            at the start each weight has about the same sparsity.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> training = GraNet(nn.Linear(20, 10), sparsity=0.9, every=100, end_step=1000)
        >>> training.masks.sparsity(), training.next_step
        (0.5, 100)

    References:
        Liu et al. 2021, "Sparse training via boosting pruning plasticity with neuroregeneration", algorithm 1.
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
        initial_sparsity: float = 0.5,
        curve: Curve = cubic,
        drop_fraction: float | Schedule = 0.3,
        **shared: Unpack[Shared],
    ) -> None:
        shared.setdefault("allocation", global_)
        super().__init__(
            model,
            optimizer,
            sparsity=approach(curve, initial_sparsity, sparsity, every=every, begin_step=begin_step, end_step=end_step),
            end_step=end_step,
            every=every,
            begin_step=begin_step,
            drop=scores.magnitude,
            grow=gradient,
            drop_fraction=decaying(drop_fraction, end_step),
            **shared,
        )
