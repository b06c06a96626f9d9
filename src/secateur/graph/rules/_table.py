"""The table of rules. Ops that torch tags as pointwise share one; an op without a rule blocks all that it touches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from secateur.graph.call import Call, Rule
from secateur.graph.labels import Dims

__all__ = ["RULES", "rule", "rule_for"]

AnyRule = TypeVar("AnyRule", bound=Rule)

_RULES: dict[str, Rule] = {}

RULES: Mapping[str, Rule] = MappingProxyType(_RULES)
"""All rules by the name of the op, read-only."""


def rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Register what some ops do to labels.

    Args:
        *names: Names of ops without overload, ``"aten.mm"``, or with it, ``"aten.view.dtype"``, which comes first.
            In-place forms have names of their own; ``out=`` forms have not.

    Returns:
        The decorator for a function of a `Call` that states facts and returns the dims of each tensor of the result.

    Raises:
        ValueError: One of the ops has a rule already.

    Example:
        An op of one's own that doubles the channels of its input, each copy beside its original:

        >>> import torch
        >>> from secateur.graph.rules import RULES, rule
        >>> @rule("mine.double")
        ... def double(call):
        ...     batch, channels = call.dims(call.args[0])
        ...     return [(batch, (*channels, call.labels.fixed(2)))]
        >>> RULES["mine.double"] is double
        True
    """

    def register(function: AnyRule) -> AnyRule:
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} has a rule already: {_RULES[name].__name__}")
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def rule_for(func: Any) -> Rule:
    """The rule of an op."""
    packet = getattr(func, "overloadpacket", func)
    found = _RULES.get(f"{packet}.{getattr(func, '_overloadname', '')}")
    if found is None and torch.Tag.pointwise in getattr(func, "tags", ()):
        return _RULES["pointwise"]
    return found or _RULES.get(str(packet), unknown)


def unknown(call: Call) -> list[Dims]:
    """An op without a rule: nothing that it touches can be removed."""
    for tensor in call.inputs:
        for dim in call.dims(tensor):
            call.block(dim, f"{call.name} has no rule")
    return call.fixed()
