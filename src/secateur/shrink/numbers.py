"""Numbers that a plan changes: a size that some object of the model stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from secateur._errors import ShapeError
from secateur.graph.expressions import Count
from secateur.graph.provenance import PinnedSize, old_size
from secateur.graph.sizing import Sizing
from secateur.graph.sources import Attribute
from secateur.surgery.edits import SetAttr
from secateur.surgery.sizes import SIZES

__all__ = ["NumberPlan", "SetNumber", "number_owner", "planned_numbers"]


@dataclass(frozen=True)
class NumberPlan:
    """A number that an object of the model stores, before and after: ``<path>.<name>``, or one entry of it.

    A pinned one is also used as a value in the code (``self.head_dim ** -0.5``) and goes on as the old one there. If it
    is the same before and after, a layer records it (``Embedding.embedding_dim``), and surgery says what it becomes.
    """

    path: str
    name: str
    index: int | None
    before: int
    after: int
    pinned: bool = False


def planned_numbers(sizing: Sizing, count: Count) -> tuple[NumberPlan, ...]:
    """The numbers that change, and those that surgery may change and that are values too; by where they are stored.

    Args:
        sizing: What numbers in the code stand for.
        count: How many positions dims have afterwards.
    """
    values = {attribute: value for attribute, value in sizing.values(count).items() if value != attribute.value}
    recorded = {attribute: attribute.value for attribute in sizing.pinned if _is_recorded(attribute)}
    numbers = (
        NumberPlan(a.label, a.name, a.index, a.value, after, a in sizing.pinned)
        for a, after in (recorded | values).items()
    )
    return tuple(sorted(numbers, key=lambda n: (n.path, n.name, -1 if n.index is None else n.index)))


def _is_recorded(attribute: Attribute) -> bool:
    """Whether a module stores a number that surgery changes along with its tensors."""
    return any(kind in SIZES for kind in type(attribute.owner).__mro__)


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
    """The edit that changes one stored number; several may change entries of one tuple.

    It is made before anything changes, and done when surgery has given layers the sizes of their tensors.
    """

    def __init__(self, owner: object, number: NumberPlan) -> None:
        self.owner, self.number = owner, number
        self.before = self._stored()
        self.edit: SetAttr | None = None

    def do(self) -> None:
        """Set the new value and remember the old one."""
        name, index = self.number.name, self.number.index
        stored = getattr(self.owner, name)
        value = self._after(self._stored())
        if index is not None:
            value = type(stored)([*stored[:index], value, *stored[index + 1 :]])
        self.edit = SetAttr(self.owner, name, value)
        self.edit.do()

    def undo(self) -> None:
        """Put the old value back."""
        if self.edit is not None:
            self.edit.undo()

    def _stored(self) -> int:
        """The number as it is stored now."""
        stored: Any = getattr(self.owner, self.number.name)
        number: int = stored if self.number.index is None else stored[self.number.index]
        return number

    def _after(self, now: int) -> int:
        """The new number, which goes on with the old one as a value if it is pinned."""
        after = self.number.after if self.number.after != self.number.before else int(now)
        if after == self.number.before:
            return self.before
        is_pinned = self.number.pinned or isinstance(self.before, PinnedSize)
        return PinnedSize(after, old_size(self.before)) if is_pinned else after
