"""One op of a run, as it is remembered: what was read and made, what it combined, what scalars it was given."""

from __future__ import annotations

from typing import NamedTuple

from secateur.graph.call import Rule
from secateur.graph.labels import Dim, Dims

__all__ = ["Ran"]


class Ran(NamedTuple):
    """One op that ran.

    Args:
        name: The op without overload.
        rule: The rule that was applied.
        inputs: Dims of its tensors, before it.
        outputs: Dims of its results, after it.
        mixed: Dims whose positions it combines.
        scalars: Floating-point scalars that it was given.
        is_view: Whether its results share memory with its first tensor.
    """

    name: str
    rule: Rule
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    mixed: tuple[Dim, ...]
    scalars: tuple[float, ...]
    is_view: bool = False
