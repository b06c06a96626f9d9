"""Static: masks that never change. The baseline that every other method has to beat."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from secateur.dst.training import Shared, SparseTraining
from secateur.masks.commit import Optimizers

__all__ = ["Static"]


class Static(SparseTraining):
    """Train with masks that are chosen at the start, at random if nothing else is said, and never change.

    Args:
        model: The model.
        optimizer: The optimizer, or several.
        sparsity: Fraction of zeros in [0, 1).
        **shared: Arguments that every method takes; see `SparseTraining`.

    Raises:
        SecateurError: Those of `SparseTraining`.

    Example:
        >>> Static(nn.Linear(20, 10), sparsity=0.9).masks.num_zeros()
        180

    References:
        Liu et al. 2022, "The unreasonable effectiveness of random pruning: return of the most naive baseline for sparse
        training".
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizers = None, *, sparsity: float, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(model, optimizer, sparsity=sparsity, end_step=0, every=None, uses_gradients=False, **shared)
