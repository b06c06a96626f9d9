"""Who changes masks as training goes on, and so wants to be called around the steps.

A listener is found through the masks of some parameters, and called by the hooks that hold masks, for whichever
optimizers step those. So it needs no optimizer, and no hook of its own on one, which could write anything and would
make every step be masked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch.optim import Optimizer

if TYPE_CHECKING:
    from secateur.masks.mask import Mask

__all__ = ["Listener"]


class Listener(Protocol):
    """Is called around each step of an optimizer; `held` are the masks of its parameters that have sent for it."""

    def before_step(self, optimizer: Optimizer, held: Sequence[Mask], *, has_closure: bool) -> None:
        """The step is about to be made; gradients are there, and masked, unless a closure will make them."""

    def before_closure(self, held: Sequence[Mask]) -> None:
        """The step is about to evaluate the loss, once or once more."""

    def after_closure(self, held: Sequence[Mask]) -> None:
        """It has, and gradients are masked."""

    def after_step(self, optimizer: Optimizer, held: Sequence[Mask]) -> None:
        """The step has been made, and masked weights are zero."""
