"""MEST: drop where weight and gradient are small, grow at random."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur.dst.ratings import random, weight_and_gradient
from secateur.dst.timetable import decaying
from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers
from secateur.schedules import Schedule

__all__ = ["MEST"]


class MEST(SparseTraining):
    r"""Memory-economic sparse training: weights with small :math:`|w| + \lambda |g|` go, others come at random.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in [0, 1).
        end_step: No change is made after so many optimizer steps.
        every: Steps from one change to the next.
        begin_step: The step of the first change; after `every` steps if left out.
        drop_fraction: Fraction of the kept weights that would be exchanged at step 0, which decays along a cosine; or a
            schedule of the fraction.
        gradient_weight: :math:`\lambda`.
        **shared: Arguments that every method takes; see `SparseTraining`. The allocation is ERK if left out.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> MEST(nn.Linear(20, 10), sparsity=0.9, end_step=1000).next_step
        100

    References:
        Yuan et al. 2021, "MEST: accurate and fast memory-economic sparse training framework on the edge", section 3.1.
        Different here: no more weights are kept for a while than in the end (the paper's soft memory bound).
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
        drop_fraction: float | Schedule = 0.3,
        gradient_weight: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            end_step=end_step,
            every=every,
            begin_step=begin_step,
            drop=weight_and_gradient(gradient_weight),
            grow=random,
            drop_fraction=decaying(drop_fraction, end_step),
            **shared,
        )
