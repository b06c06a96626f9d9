"""One tensor's planned change of shape, and the edits that a commit is made of."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from secateur.surgery.positions import Selection

__all__ = ["Change", "Do", "Edit", "SetAttr", "SetItem"]

_NOT_DONE = object()


@dataclass(frozen=True, eq=False)
class Change:
    """How one parameter or buffer is about to change its shape.

    Args:
        name: Its first dotted name, relative to the model of the transaction.
        tensor: The parameter or buffer itself, not yet changed.
        selections: At most one a dim, in the order in which they were asked for.
    """

    name: str
    tensor: Tensor
    selections: tuple[Selection, ...] = ()

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

    def take(self, tensor: Tensor, fill: float = 0.0) -> Tensor:
        """Make a tensor of the old shape (a gradient, a moment) follow; new positions hold `fill`."""
        for selection in self.selections:
            tensor = selection.take(tensor, fill)
        return tensor

    def take_value(self, tensor: Tensor) -> Tensor:
        """Make the parameter's own values, or a copy of them (an average), follow; new positions as asked for."""
        for selection in self.selections:
            tensor = selection.take_value(tensor)
        return tensor


class Edit(Protocol):
    """One step of a commit. All that can fail has been computed before; `undo` restores what `do` got to replace."""

    def do(self) -> None:
        """Carry the edit out."""

    def undo(self) -> None:
        """Restore what was there before."""


@dataclass
class SetItem:
    """``container[key] = value``, as for an entry of an optimizer's state."""

    container: MutableMapping[Any, Any]
    key: Any
    value: object
    old: object = _NOT_DONE

    def do(self) -> None:
        """Set the new value and remember the old one."""
        self.old = self.container[self.key]
        self.container[self.key] = self.value

    def undo(self) -> None:
        """Put the old value back."""
        if self.old is not _NOT_DONE:
            self.container[self.key] = self.old


@dataclass
class SetAttr:
    """``setattr(owner, name, value)``, as for a size that a module has recorded."""

    owner: object
    name: str
    value: object
    old: object = _NOT_DONE

    def do(self) -> None:
        """Set the new value and remember the old one."""
        self.old = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)

    def undo(self) -> None:
        """Put the old value back."""
        if self.old is not _NOT_DONE:
            setattr(self.owner, self.name, self.old)


@dataclass
class Do:
    """A call made once everything has changed, for state that is derived from it; `restore` is its reverse, if any."""

    refresh: Callable[[], object]
    restore: Callable[[], object] | None = None

    def do(self) -> None:
        """Refresh."""
        self.refresh()

    def undo(self) -> None:
        """Restore."""
        if self.restore is not None:
            self.restore()
