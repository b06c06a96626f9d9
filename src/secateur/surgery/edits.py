"""The steps that a commit is made of. All that can fail is computed before the first one; each can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Do", "Edit", "SetAttr", "SetItem", "SetValue", "carry_out"]

_NOT_DONE = object()


class Edit(Protocol):
    """One step: `undo` restores what `do` got to replace, also when `do` failed half-way."""

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
    """``setattr(owner, name, value)``, as for a size that a module has recorded.

    A frozen dataclass takes the value as well: it is part of the model, and freezing is about the user's own code.
    """

    owner: object
    name: str
    value: object
    old: object = _NOT_DONE

    def do(self) -> None:
        """Set the new value and remember the old one."""
        self.old = getattr(self.owner, self.name)
        self._set(self.value)

    def undo(self) -> None:
        """Put the old value back, unless it is still there."""
        if self.old is not _NOT_DONE and getattr(self.owner, self.name) is not self.old:
            self._set(self.old)

    def _set(self, value: object) -> None:
        """Set a value."""
        parameters = getattr(type(self.owner), "__dataclass_params__", None)
        if parameters is not None and parameters.frozen:
            object.__setattr__(self.owner, self.name, value)
        else:
            setattr(self.owner, self.name, value)


@dataclass
class SetValue:
    """``tensor.copy_(value)`` for a tensor that has the shape of `value` by then."""

    tensor: Tensor
    value: Tensor
    old: Tensor | None = None

    def do(self) -> None:
        """Write the new values and remember the old ones."""
        self.old = self.tensor.detach().clone()
        with torch.no_grad():
            self.tensor.copy_(self.value)

    def undo(self) -> None:
        """Write the old values again."""
        if self.old is not None:
            with torch.no_grad():
                self.tensor.copy_(self.old)


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


def carry_out(edits: Iterable[Edit]) -> None:
    """Do all edits, in order; if one fails after all, undo it and all before it, and raise its error.

    What goes wrong as one is undone keeps no other from being undone; it is noted on the error.
    """
    done: list[Edit] = []
    try:
        for edit in edits:
            done.append(edit)
            edit.do()
    except BaseException as error:
        for edit in reversed(done):
            _undo(edit, error)
        raise


def _undo(edit: Edit, error: BaseException) -> None:
    """Undo one edit after an error."""
    try:
        edit.undo()
    except BaseException as another:
        error.add_note(f"{type(edit).__name__} could not be undone: {type(another).__name__}: {another}")
