"""One op that ran, as a rule sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur.graph.labels import Dim, Dims, Labels

if TYPE_CHECKING:
    from secateur.graph.capture import Capture

__all__ = ["Call", "Kind", "Rule", "operands", "tensors_in"]


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors in nested lists, tuples, dicts, registered containers, and attributes of plain objects in them."""
    if isinstance(tree, Tensor):
        return [tree]
    leaves: list[object] = tree_leaves(tree)
    return [tensor for leaf in leaves for tensor in _tensors_of(leaf, _DEPTH, set())]


def _tensors_of(leaf: object, depth: int, seen: set[int]) -> list[Tensor]:
    """The tensors in what torch does not know as a container: a dataclass, a plain object, a subclass of dict."""
    if isinstance(leaf, Tensor):
        return [leaf]
    if depth == 0 or id(leaf) in seen or isinstance(leaf, _CLOSED):
        return []
    seen.add(id(leaf))
    return [tensor for entry in _entries_of(leaf) for tensor in _tensors_of(entry, depth - 1, seen)]


def _entries_of(container: object) -> list[object]:
    """What an object holds."""
    if isinstance(container, Mapping):
        return list(container.values())
    if isinstance(container, list | tuple | set | frozenset | deque):
        return list(container)
    names = [entry.name for entry in fields(container)] if is_dataclass(container) else []
    slots = {name: getattr(container, name, None) for name in names}
    return list((slots | getattr(container, "__dict__", {})).values())


_DEPTH = 5
"""So many objects may lie around a tensor."""

_CLOSED = (nn.Module, type, FunctionType, ModuleType, str, bytes, int, float)
"""Kinds of objects whose attributes are no results."""


def operands(tree: object) -> list[Tensor]:
    """All tensors among an op's arguments or results, which are tensors or lists of them."""
    if isinstance(tree, Tensor):
        return [tree]
    found: list[Tensor] = []
    if isinstance(tree, list | tuple):
        for entry in tree:
            if isinstance(entry, Tensor | list | tuple):
                found += operands(entry)
    return found


@dataclass(frozen=True)
class Kind:
    """What an op's schema says.

    Args:
        name: The op without overload, ``aten.add_``.
        rule: What it does to labels.
        defaults: Names of its arguments in their order, each with its default.
        written: Names of the arguments that it writes into.
        out: Those of them that only say where to put the result (``out=``).
        is_view: Whether its results share memory with its first argument.
        is_root: Whether it hands values to Python, so that what it reads matters.
        restrides: Whether it changes the shape of its argument in place (``t_``).
    """

    name: str
    rule: Rule
    defaults: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    is_view: bool = False
    is_root: bool = False
    restrides: bool = False
    _places: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Number the arguments."""
        object.__setattr__(self, "_places", {name: place for place, name in enumerate(self.defaults)})

    @classmethod
    def of(cls, func: Any, rule: Rule) -> Kind:
        """Read an op's schema; a higher-order op has none."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return cls(str(func), rule, is_root=True)
        arguments = schema.arguments
        written = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
        aliased = any(result.alias_info is not None for result in schema.returns)
        return cls(
            name=str(func.overloadpacket),
            rule=rule,
            defaults={a.name: a.default_value for a in arguments},
            written=written,
            out=tuple(a.name for a in arguments if a.is_out),
            is_view=aliased and not written,
            is_root=torch.Tag.data_dependent_output in func.tags,
            restrides=torch.Tag.inplace_view in func.tags,
        )

    def argument(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], otherwise: Any = None) -> Any:
        """An argument of one call, or its default; `otherwise` if the op has no argument of this name."""
        if name in kwargs:
            return kwargs[name]
        place = self._places.get(name, len(args))
        return args[place] if place < len(args) else self.defaults.get(name, otherwise)


@dataclass
class Call:
    """One op that ran: what a rule sees.

    Args:
        capture: The capture that it is part of.
        kind: What its schema says.
        func: The ATen op (overload).
        args: Its positional arguments.
        kwargs: Its keyword arguments, without those that say where to put its result (``out=``).
        out: Its result.
        inputs: All tensors among the arguments.
        outputs: All tensors of the result.
    """

    capture: Capture
    kind: Kind
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def name(self) -> str:
        """The op without overload, ``aten.add_``."""
        return self.kind.name

    @property
    def labels(self) -> Labels:
        """Where facts are written down."""
        return self.capture.labels

    def arg(self, name: str, otherwise: Any = None) -> Any:
        """An argument, or its default; `otherwise` if the op has no argument of this name."""
        return self.kind.argument(name, self.args, self.kwargs, otherwise)

    def dims(self, tensor: Tensor) -> Dims:
        """Labels of a tensor."""
        return self.capture.dims(tensor)

    def fixed(self) -> list[Dims]:
        """Dims of results of which nothing can be removed."""
        return [self.labels.fixed_dims(tensor.shape) for tensor in self.outputs]

    def free_dim(self, size: int) -> Dim:
        """A new dim that may lose any position, if the number that gives its size follows."""
        dim = self.labels.fresh_dim(size)
        if dim:
            self.capture.made.append(dim)
        return dim

    def equal(self, one: Dim, other: Dim) -> None:
        """State that two dims go together."""
        self.labels.equal(one, other)

    def block(self, dim: Dim, why: str) -> None:
        """State that a dim stays: with fewer positions the op would fail, or give another size than its rule says."""
        self.capture.hold(dim, why, always=True)

    def block_if_used(self, dim: Dim, why: str, result: int | None = None) -> None:
        """State that a dim stays if someone uses the op's values (or those of one result, by number); sizes follow."""
        self.capture.hold(dim, why, result)

    def mix(self, dim: Dim) -> None:
        """State that the op combines all positions of a dim, so that zeroing some is not removing them."""
        if dim:
            self.capture.mixed.append((dim, self.name))

    def follows(self, size: int) -> bool:
        """Whether a size that the op was given will be another one when positions are gone."""
        return self.capture.size_follows(size)


Rule = Callable[[Call], Sequence[Dims]]
"""What an op does to labels: states equations and blocks, and returns the dims of each tensor of the result."""
