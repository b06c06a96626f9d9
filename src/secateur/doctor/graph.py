"""Which leaves the graph of a loss leads to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["reached"]

_OPAQUE = ("CheckpointFunctionBackward",)
"""Nodes whose inner graph is only built during backward (checkpointing with use_reentrant=True)."""


def reached(loss: Tensor) -> set[int] | None:
    """Find the leaves to which a backward pass from `loss` would bring a gradient.

    Args:
        loss: A tensor with a graph; one that has been backwarded already will do.

    Returns:
        Ids of the leaf tensors, or None where part of the graph cannot be seen.
    """
    leaves: set[int] = set()
    seen: set[Any] = {loss.grad_fn}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node.name() in _OPAQUE:
            return None
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return leaves
