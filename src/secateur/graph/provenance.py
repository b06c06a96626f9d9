"""Sizes written in Python: which attribute, and which tensor's shape, each number in the model's code comes from.

``x.view(b, n, self.num_heads, -1)`` must be given another number once heads are gone. While a model is traced, the
integers that its modules store, and those that ``tensor.shape`` returns, are replaced by `Size`: an ``int`` that
remembers where it came from, through arithmetic too. A `TorchFunctionMode` sees which dim of which result each of them
fixes. That gives, with no search, the new value of an attribute (the number of positions that its dim keeps), and the
couplings that the code demands: the same ``head_dim`` for query and value is the same number of positions in both.

A number of unknown origin (a literal, or one that went through ``int()`` or numpy) keeps the dim that it fixes whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from torch import nn

from secateur.graph.integers import PinnedSize as PinnedSize
from secateur.graph.integers import Size as Size
from secateur.graph.integers import Watcher
from secateur.graph.integers import old_size as old_size
from secateur.graph.integers import source_of as source_of
from secateur.graph.sources import Attribute as Attribute
from secateur.graph.sources import DimSize as DimSize
from secateur.graph.sources import Expression as Expression
from secateur.graph.sources import Source as Source
from secateur.graph.sources import sources_in as sources_in

__all__ = [
    "Attribute",
    "AttributeSizes",
    "DimSize",
    "Expression",
    "PinnedSize",
    "Size",
    "Source",
    "old_size",
    "source_of",
    "sources_in",
    "stored_sizes",
]


def stored_sizes(model: nn.Module) -> Iterator[tuple[Attribute, int]]:
    """All positive integers that a model's modules (and their configs) store, with their places.

    Example:
        >>> [(place.name, value) for place, value in stored_sizes(nn.Linear(3, 2))]
        [('in_features', 3), ('out_features', 2)]
    """
    for label, owner in _owners(model):
        for name, value in vars(owner).items():
            if name.startswith("_") or name in _FLAGS:
                continue
            if _is_size(value, least=1):
                yield Attribute(owner, label, name), value
            elif type(value) in (tuple, list) and value and all(_is_size(entry, least=1) for entry in value):
                for index, entry in enumerate(value):
                    yield Attribute(owner, label, name, index), entry


class AttributeSizes:
    """For as long as the ``with`` block lasts, integers stored in a model's modules (and their configs) are `Size`.

    Args:
        model: The model.
        watcher: See `Size`.
    """

    def __init__(self, model: nn.Module, watcher: Watcher) -> None:
        self._owners = list(_owners(model))
        self._watcher = watcher
        self._old: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> Self:
        """Put `Size` in place of the integers."""
        for label, owner in self._owners:
            for name, value in list(vars(owner).items()):
                tracked = self._tracked(owner, label, name, value)
                if tracked is not value:
                    self._old.append((vars(owner), name, value))
                    vars(owner)[name] = tracked
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the integers back."""
        for attributes, name, old in reversed(self._old):
            attributes[name] = old
        self._old.clear()

    def _size(self, value: int, place: Attribute) -> Size:
        """A stored number with its place."""
        return Size(value, place, self._watcher, old_size(value))

    def _tracked(self, owner: object, label: str, name: str, value: Any) -> Any:
        """The value with sources, itself if it is no size."""
        if name.startswith("_") or name in _FLAGS:
            return value
        if _is_size(value):
            return self._size(value, Attribute(owner, label, name))
        if type(value) in (tuple, list) and any(map(_is_size, value)) and all(_is_size(e, least=1) for e in value):
            places = (Attribute(owner, label, name, index) for index in range(len(value)))
            return type(value)(self._size(e, at) if _is_size(e) else e for e, at in zip(value, places, strict=True))
        return value


_PLAIN = frozenset({type(None), bool, int, float, str, list, tuple, set, dict, OrderedDict})
"""Types of what modules store the most, which are no configs."""

_FLAGS = frozenset({"training", "dump_patches", "call_super_init"})


def _is_size(value: Any, least: int = 2) -> bool:
    """Whether a stored value can be a number of positions: an int, above 1 by default (such dims are never cut)."""
    return isinstance(value, int) and type(value) in (int, PinnedSize) and value >= least


def _owners(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Objects whose integers count: modules, and configs that modules store (each once)."""
    seen: set[int] = set()
    for label, module in model.named_modules():
        yield label, module
        for name, value in vars(module).items():
            if id(value) not in seen and _is_config(value):
                seen.add(id(value))
                yield f"{label}.{name}" if label else name, value


def _is_config(value: object) -> bool:
    """Whether an object is a bag of settings: no module, no container, with a ``__dict__`` that holds integers."""
    if type(value) in _PLAIN or isinstance(value, nn.Module | type) or callable(value):
        return False
    if not hasattr(value, "__dict__"):
        return False
    return any(_is_size(entry) for entry in vars(value).values())
