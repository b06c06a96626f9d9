"""The table of rules. Ops that torch tags as pointwise share one; an op without a rule blocks all that it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from secateur.graph.capture import Call, Rule, tensors_in
from secateur.graph.labels import Dims

__all__ = ["rule", "rule_for"]

_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register what some ops do to labels.

    Args:
        *names: Names of ops without overload, ``"aten.mm"``; in-place and ``out=`` forms have names of their own.

    Returns:
        The decorator for a function of a `Call` that states facts and returns the dims of each tensor of the result.

    Raises:
        ValueError: One of the ops has a rule already.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} has a rule already: {_RULES[name].__name__}")
            _RULES[name] = function
        return function

    return register


def rule_for(func: Any) -> Rule:
    """The rule of an op."""
    found = _RULES.get(str(func.overloadpacket))
    if found is not None:
        return found
    if torch.Tag.pointwise in func.tags:
        return _RULES["pointwise"]
    return unknown


def unknown(call: Call) -> list[Dims]:
    """An op without a rule: nothing that it touches can be removed."""
    why = f"{call.name} has no rule"
    for tensor in tensors_in((call.args, call.kwargs)):
        for dim in call.dims(tensor):
            call.block(dim, why)
    return [call.labels.fixed_dims(tensor.shape) for tensor in tensors_in(call.out)]
