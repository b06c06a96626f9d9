"""RigL: drop the smallest weights, grow where the gradient is largest."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur import scores
from secateur.dst.ratings import gradient
from secateur.dst.timetable import decaying
from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers
from secateur.schedules import Schedule

__all__ = ["RigL"]


class RigL(SparseTraining):
    r"""The rigged lottery: the smallest weights are dropped, and those with the largest gradients are grown.

    The fraction that is exchanged decays along a cosine, :math:`\frac{\alpha}{2} (1 + \cos \pi t / T_{end})`.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in [0, 1).
        end_step: :math:`T_{end}`: no change is made after so many optimizer steps. The paper takes three quarters of
            the training.
        every: :math:`\Delta T`, steps from one change to the next.
        begin_step: The step of the first change; after `every` steps if left out.
        drop_fraction: :math:`\alpha`, the fraction of the kept weights that would be exchanged at step 0; or a schedule
            of the fraction.
        **shared: Arguments that every method takes; see `SparseTraining`. The allocation is ERK if left out.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        >>> training = RigL(model, optimizer, sparsity=0.9, every=10, end_step=75)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(16, 20)).square().mean().backward()
        ...     optimizer.step()
        >>> [change.step for change in training.history], training.masks.num_zeros()
        ([0, 10, 20, 30, 40, 50, 60, 70], 594)

    References:
        Evci, Gale, Menick, Castro, Elsen 2020, "Rigging the lottery: making all tickets winners", algorithm 1.
        Different here: a weight that is dropped in a change cannot be grown in the same one.
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
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            end_step=end_step,
            every=every,
            begin_step=begin_step,
            drop=scores.magnitude,
            grow=gradient,
            drop_fraction=decaying(drop_fraction, end_step),
            **shared,
        )
