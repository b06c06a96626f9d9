"""What stays, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secateur.graph.labels import Dims
from secateur.graph.solve import FIXED, Solution

__all__ = ["UNKNOWN_REASON", "WINDOW", "Kept", "kept_of", "reasons"]

Ids = npt.NDArray[Any]

UNKNOWN_REASON = "it goes with positions that stay"
WINDOW = "it is a position in a convolution's window"


@dataclass(frozen=True)
class Kept:
    """Positions of one dim of a parameter that stay, and why."""

    name: str
    dim: int
    positions: int
    why: str


def kept_of(dims: Mapping[str, Dims], solution: Solution, parameters: frozenset[str]) -> Iterable[Kept]:
    """Dims of parameters with positions that stay; windows of convolutions, which nobody would cut, are left out."""
    removable = solution.removed(np.nonzero(solution.is_unit)[0].tolist())
    for name, several in dims.items():
        if name not in parameters:
            continue
        for d, dim in enumerate(several):
            for axis in dim:
                classes = solution.classes(axis)
                staying = classes[~removable[classes]] if not axis.is_fixed else classes[:0]
                if len(staying):
                    why = next(iter(reasons(solution, np.unique(staying))), UNKNOWN_REASON)
                    if why != WINDOW:
                        yield Kept(name, d, len(staying), why)


def reasons(solution: Solution, classes: Ids) -> Iterable[str]:
    """Why classes stay: their own reasons, those of what they are products of, then those of what is made of them."""
    pending = classes
    while len(pending):
        yield from (solution.why[c] for c in pending.tolist() if c in solution.why)
        above = np.unique(solution.parents[pending])
        pending = np.setdiff1d(above[above != FIXED], classes)
        classes = np.union1d(classes, pending)
    below = np.setdiff1d(np.nonzero(np.isin(solution.parents, classes).any(axis=1))[0], classes)
    below = below[solution.blocked[below]]
    yield from (solution.why[c] for c in below.tolist() if c in solution.why)
