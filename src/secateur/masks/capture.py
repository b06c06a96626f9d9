"""The dense gradient of a masked parameter, kept aside as it arrives, for masks that are about to change."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.masks.bits import Bits

__all__ = ["Capture"]


class Capture:
    """What backward passes have left since it was made, at masked places too: their sum, if there are several.

    Attributes:
        total: Dense, of the gradient's dtype; None before the first backward pass.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self._node: object = None

    def add(self, gradient: Tensor, bits: Bits, *, continues: bool) -> None:
        """Take in what one more backward pass has left, before it is masked.

        Args:
            gradient: The parameter's gradient: at kept places the sum of all passes, at masked ones that of the last.
            bits: The parameter's mask.
            continues: Whether this pass came on top of those before. If the gradient was set to zero in between, what
                they left is forgotten, as it is in the gradient.
        """
        dense = _dense(gradient)
        continues = continues or self._is_sum(gradient)  # create_graph=True makes a new tensor of the sum
        self._node = gradient.grad_fn
        if continues and self.total is not None:
            bits.clear_kept_(self.total)
            self.total.add_(dense)
        else:
            self.total = dense.clone()

    def _is_sum(self, gradient: Tensor) -> bool:
        """Whether the gradient was computed from the one before."""
        node = gradient.grad_fn
        return node is not None and any(fn is self._node for fn, _ in node.next_functions if fn is not None)

    def add_by_hand(self, gradient: Tensor, bits: Bits) -> None:
        """Take in a gradient that no backward pass has left, if it says something about masked entries.

        One that is zero there is an old one that was clipped, or set to zero in place, and nothing to go by.
        """
        dense = _dense(gradient).clone()
        masked = dense.clone()
        bits.clear_(masked)
        if not torch.equal(dense, masked):
            self.total = dense

    def set(self, total: Tensor) -> None:
        """Take another sum, since the parameter was resized."""
        self.total = total


def _dense(gradient: Tensor) -> Tensor:
    """The gradient, detached; a sparse one in full."""
    return gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
