"""What a run leaves behind in a model's objects besides the values of tensors: caches, counters, lazily set widths."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["attributes_restored"]


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """Put back, when the block ends, what the attributes of a model's modules were.

    That includes what their dicts, lists and plain objects hold, which a forward may fill (``self.cache[n] = mask``),
    but nothing deeper.

    Args:
        model: The model.
    """
    restorers = [restore for module in model.modules() for restore in _restorers(module)]
    try:
        yield
    finally:
        for restore in restorers:
            restore()


def _restorers(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Calls that put back one module's attributes, and what they hold."""
    yield _dict_restorer(vars(module))
    for name, value in list(vars(module).items()):
        if name in _HOOKS:
            continue
        if isinstance(value, dict):
            yield _dict_restorer(value)
        elif isinstance(value, list):
            yield _list_restorer(value)
        elif not isinstance(value, Tensor | nn.Module) and not callable(value) and hasattr(value, "__dict__"):
            yield _dict_restorer(vars(value))


_HOOKS = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
"""What torch keeps in every module besides its tensors and parts: hooks and flags."""


def _dict_restorer(entries: dict[Any, Any]) -> Callable[[], None]:
    """The call that gives a dict its present entries again, if it has others by then."""
    before = dict(entries)

    def restore() -> None:
        if len(entries) == len(before) and all(map(operator.is_, entries.values(), before.values())):
            return
        wanted = {key: _latest(value, entries.get(key)) for key, value in before.items()}
        if [*map(id, entries)] != [*map(id, wanted)] or any(entries[key] is not new for key, new in wanted.items()):
            entries.clear()
            entries.update(wanted)

    return restore


def _latest(old: object, new: object) -> object:
    """The old value, or the new one where each run computes a tensor anew (weights under old hooks of torch).

    The old one belongs to a graph that may be gone, and keeps the module from being copied.
    """
    is_computed = isinstance(old, Tensor) and isinstance(new, Tensor) and not old.is_leaf
    return new if is_computed else old


def _list_restorer(entries: list[Any]) -> Callable[[], None]:
    """The call that gives a list its present entries again, if it has others by then."""
    before = list(entries)

    def restore() -> None:
        if len(entries) != len(before) or any(a is not b for a, b in zip(entries, before, strict=True)):
            entries[:] = before

    return restore
