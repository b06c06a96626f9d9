"""Who changes masks as training goes on, and so wants to be called around the steps.

A listener is found through the mask of one parameter, and called by the hooks that hold masks, for whichever optimizer
steps that parameter. So it needs no optimizer, and no hook of its own on one, which could write anything and would make
every step be masked twice.
"""

from __future__ import annotations

from typing import Protocol

from torch.optim import Optimizer

__all__ = ["Listener"]


class Listener(Protocol):
    """Is called around each step of an optimizer."""

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """The step is about to be made; gradients are there, and masked, unless a closure will make them."""

    def before_closure(self) -> None:
        """The step is about to evaluate the loss, once or once more."""

    def after_closure(self) -> None:
        """It has, and gradients are masked."""

    def after_step(self, optimizer: Optimizer) -> None:
        """The step has been made, and masked weights are zero."""
