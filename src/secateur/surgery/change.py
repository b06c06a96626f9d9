"""One tensor's planned change of shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.surgery.selection import Selection

__all__ = ["Change"]


@dataclass(frozen=True, eq=False)
class Change:
    """How one parameter or buffer is about to change its shape.

    Args:
        name: Its first dotted name, relative to the model of the transaction.
        tensor: The parameter or buffer itself, not yet changed.
        selections: At most one a dim, in the order in which they were asked for.
        aliases: Its other dotted names, where it is tied.
    """

    name: str
    tensor: Tensor
    selections: tuple[Selection, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All its dotted names, the first one first."""
        return (self.name, *self.aliases)

    @property
    def old_shape(self) -> torch.Size:
        """Shape before."""
        return self.tensor.shape

    @property
    def new_shape(self) -> torch.Size:
        """Shape after."""
        shape = list(self.tensor.shape)
        for selection in self.selections:
            shape[selection.dim] = selection.new_size
        return torch.Size(shape)

    def along(self, dim: int) -> Selection | None:
        """What happens to `dim` (negative counts from the end), None if nothing does."""
        dim %= self.tensor.dim()
        return next((s for s in self.selections if s.dim == dim), None)

    def growth(self, dim: int) -> float:
        """Number of positions along `dim` after, divided by the number before; 1 where nothing happens."""
        selection = self.along(dim)
        return selection.new_size / selection.size if selection else 1.0

    def take(self, tensor: Tensor, fill: complex = 0.0) -> Tensor:
        """Make a tensor of the old shape (a gradient, a moment) follow; new positions hold `fill`."""
        for selection in self.selections:
            tensor = selection.take(tensor, fill)
        return tensor

    def take_value(self, tensor: Tensor) -> Tensor:
        """Make the parameter's own values, or a copy of them (an average), follow; new positions as asked for."""
        for selection in self.selections:
            tensor = selection.take_value(tensor)
        return tensor
