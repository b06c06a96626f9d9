"""SET: drop the smallest weights, grow at random."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur import scores
from secateur.allocation import erdos_renyi
from secateur.dst.ratings import random
from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers
from secateur.schedules import Schedule

__all__ = ["SET"]


class SET(SparseTraining):
    """Sparse evolutionary training: the smallest weights are dropped, and as many others are grown at random.

    It needs no gradients of masked weights, and hence no more memory at a change than at other steps.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in [0, 1).
        end_step: No change is made after so many optimizer steps.
        every: Steps from one change to the next; the paper changes after every epoch.
        begin_step: The step of the first change; after `every` steps if left out.
        drop_fraction: Fraction of the kept weights that are exchanged in one change, the paper's zeta; or a schedule.
        **shared: Arguments that every method takes; see `SparseTraining`. The allocation is Erdős–Rényi if left out.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> import torch
        >>> model = nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> training = SET(model, optimizer, sparsity=0.5, every=1, end_step=10, drop_fraction=0.2)
        >>> model(torch.randn(4, 20)).square().mean().backward()
        >>> optimizer.step()
        >>> training.history[-1].layers["weight"].num_grown, training.masks.num_zeros()
        (20, 100)

    References:
        Mocanu et al. 2018, "Scalable training of artificial neural networks with adaptive sparse connectivity inspired
        by network science", algorithm 2. Different here: the smallest weights go whatever their signs; the paper drops
        the smallest positive and the largest negative ones separately.
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
        shared.setdefault("allocation", erdos_renyi)
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            end_step=end_step,
            every=every,
            begin_step=begin_step,
            drop=scores.magnitude,
            grow=random,
            drop_fraction=drop_fraction,
            uses_gradients=False,
            **shared,
        )
