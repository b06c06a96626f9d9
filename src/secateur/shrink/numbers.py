"""Numbers that a plan changes: a size that some object of the model stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from secateur._errors import ShapeError
from secateur.graph.provenance import PinnedSize, old_size
from secateur.surgery.edits import SetAttr

__all__ = ["NumberPlan", "SetNumber", "number_owner"]


@dataclass(frozen=True)
class NumberPlan:
    """A number that an object of the model stores, before and after: ``<path>.<name>``, or one entry of it.

    A pinned one is also used as a value in the code (``self.head_dim ** -0.5``) and goes on as the old one there.
    """

    path: str
    name: str
    index: int | None
    before: int
    after: int
    pinned: bool = False


def number_owner(model: nn.Module, number: NumberPlan) -> object:
    """The object that stores a number, which must have the value that was planned for.

    Raises:
        ShapeError: There is no such number, or it has another value.
    """
    owner: Any = model
    try:
        for part in number.path.split(".") if number.path else ():
            owner = getattr(owner, part)
        stored = getattr(owner, number.name)
        found = stored if number.index is None else stored[number.index]
    except (AttributeError, IndexError, TypeError):
        found = "no such number"
    if found != number.before:
        name = f"{number.path}.{number.name}".lstrip(".")
        raise ShapeError(
            f"the plan does not fit: {name!r} is not as it was when the plan was made.",
            planned=number.before,
            found=found,
            fix="plans apply once, to the model that they were made for or to an equal one",
        )
    result: object = owner
    return result


class SetNumber:
    """The edit that changes one stored number; several may change entries of one tuple."""

    def __init__(self, owner: object, number: NumberPlan) -> None:
        self.owner, self.number = owner, number
        self.edit: SetAttr | None = None

    def do(self) -> None:
        """Set the new value and remember the old one."""
        name, index = self.number.name, self.number.index
        stored = getattr(self.owner, name)
        if index is None:
            value = self._after(stored)
        else:
            entries = list(stored)
            entries[index] = self._after(entries[index])
            value = type(stored)(entries)
        self.edit = SetAttr(self.owner, name, value)
        self.edit.do()

    def undo(self) -> None:
        """Put the old value back."""
        if self.edit is not None:
            self.edit.undo()

    def _after(self, before: Any) -> Any:
        """The new number, which goes on with the old one as a value if it is pinned."""
        is_pinned = self.number.pinned or isinstance(before, PinnedSize)
        return PinnedSize(self.number.after, old_size(before)) if is_pinned else self.number.after
