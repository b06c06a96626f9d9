"""What refers to a parameter and can follow its change: optimizers, averaged models, copies, and what users add.

A holder kind is registered for a class and turns changes into edits. Edits are computed in full before the first one is
carried out. Two ways lead to a holder: the user passes the object, or a finder knows it from the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur._errors import HolderError
from secateur.surgery.census import holds
from secateur.surgery.change import Change, Edit, SetAttr, SetItem
from secateur.surgery.rules import follow_entry, unknown_entry

__all__ = ["FINDERS", "HOLDERS", "Finder", "Follow", "finder", "follow", "holder"]

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


@holder(Optimizer)
def follow_optimizer(optimizer: Optimizer, changes: Sequence[Change]) -> Iterator[Edit]:
    """Every entry of the changed parameters' state, by rule."""
    for change in changes:
        state = optimizer.state.get(change.tensor)
        if not state:
            continue
        group = next(g for g in optimizer.param_groups if any(p is change.tensor for p in g["params"]))
        for name, value in state.items():
            new = follow_entry(optimizer, name, value, change, group)
            if new is not value:
                yield SetItem(state, name, new)


_FLAT = ("d", "prev_flat_grad", "old_dirs", "old_stps")


@holder(torch.optim.LBFGS)
def follow_lbfgs(optimizer: torch.optim.LBFGS, changes: Sequence[Change]) -> Iterator[Edit]:
    """LBFGS keeps flat vectors over all its parameters, under the first one."""
    parameters: list[Tensor] = optimizer.param_groups[0]["params"]
    mine = {id(c.tensor): c for c in changes if holds(optimizer, c.tensor)}
    if not mine:
        return
    yield SetAttr(optimizer, "_numel_cache", None)
    state = optimizer.state.get(parameters[0], {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1 and name not in _FLAT:
            raise unknown_entry(optimizer, name, value, next(iter(mine.values())))
        if isinstance(value, Tensor) and name in _FLAT:
            yield SetItem(state, name, _take_flat(value, parameters, mine))
        elif isinstance(value, list) and name in _FLAT:
            yield SetItem(state, name, [_take_flat(v, parameters, mine) for v in value])


def _take_flat(flat: Tensor, parameters: Sequence[Tensor], changes: dict[int, Change]) -> Tensor:
    """One flat vector, with each changed parameter's stretch taken like the parameter; new positions hold 0."""
    stretches, start = [], 0
    for parameter in parameters:
        parts = 2 if parameter.is_complex() else 1
        stretch = flat[start : start + parts * parameter.numel()]
        start += parts * parameter.numel()
        change = changes.get(id(parameter))
        if change is not None:
            shaped = stretch.view(*parameter.shape, parts) if parts == 2 else stretch.view(parameter.shape)
            stretch = change.take(shaped).reshape(-1)
        stretches.append(stretch)
    return torch.cat(stretches)
