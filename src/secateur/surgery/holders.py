"""What refers to a parameter and can follow its change: optimizers, averaged models, copies, and what users add.

A holder kind is registered for a class and turns changes into edits. Edits are computed in full before the first one is
carried out. Two ways lead to a holder: the user passes the object, or a finder knows it from the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from secateur._errors import HolderError
from secateur.surgery.change import Change
from secateur.surgery.edits import Edit

__all__ = ["FINDERS", "HOLDERS", "Finder", "Follow", "finder", "follow", "found_holders", "holder"]

Follow = Callable[[Any, Sequence[Change]], Iterable[Edit]]
"""(the holder, the changes) -> the edits that make it follow. It must not change anything itself."""

Finder = Callable[[Tensor], Iterable[object]]
"""parameter -> holders that are known to refer to it without being passed (its mask, for example)."""

HOLDERS: dict[type, Follow] = {}
FINDERS: list[Finder] = []


def holder(kind: type) -> Callable[[Follow], Follow]:
    """Register how objects of a class follow when parameters change their shape.

    Args:
        kind: The class; subclasses are covered unless they are registered themselves.

    Returns:
        The decorator for a function of the object and the changes that returns edits (`SetItem`, `SetAttr`, `Do`).

    Example:
        >>> from secateur.surgery import SetItem
        >>> class Shadow:
        ...     '''Keeps a copy of some parameters by name.'''
        ...     def __init__(self):
        ...         self.copies = {}
        >>> @holder(Shadow)
        ... def follow_shadow(shadow, changes):
        ...     return [SetItem(shadow.copies, c.name, c.take_value(shadow.copies[c.name])) for c in changes]
        >>> HOLDERS[Shadow] is follow_shadow
        True
    """

    def register(rule: Follow) -> Follow:
        HOLDERS[kind] = rule
        return rule

    return register


def finder(find: Finder) -> Finder:
    """Register a function that finds holders from a parameter. They must be of registered classes."""
    FINDERS.append(find)
    return find


def follow(obj: object, changes: Sequence[Change]) -> list[Edit]:
    """The edits that make `obj` follow the changes.

    Raises:
        HolderError: No rule is registered for the class of `obj`, or it cannot follow.
    """
    for kind in type(obj).__mro__:
        if kind in HOLDERS:
            return list(HOLDERS[kind](obj, changes))
    raise HolderError(
        f"{type(obj).__name__} is not a kind of holder that secateur knows.",
        known=", ".join(sorted(kind.__name__ for kind in HOLDERS)),
        fix=f"register it: @secateur.surgery.holder({type(obj).__name__})",
    )


def found_holders(changes: Iterable[Change]) -> list[tuple[object, list[Change]]]:
    """What the finders know of, each once, with the changes it was found from."""
    found: dict[int, tuple[object, list[Change]]] = {}
    for change in changes:
        for find in FINDERS:
            for obj in find(change.tensor):
                found.setdefault(id(obj), (obj, []))[1].append(change)
    return list(found.values())
