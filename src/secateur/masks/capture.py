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

    def add(self, gradient: Tensor, bits: Bits, *, continues: bool) -> None:
        """Take in what one more backward pass has left, before it is masked.

        Args:
            gradient: The parameter's gradient: at kept places the sum of all passes, at masked ones that of the last.
            bits: The parameter's mask.
            continues: Whether this pass came on top of those before. If the gradient was set to zero in between, what
                they left is forgotten, as it is in the gradient.
        """
        dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
        if continues and self.total is not None:
            bits.clear_kept_(self.total)
            self.total.add_(dense)
        else:
            self.total = dense.clone()
