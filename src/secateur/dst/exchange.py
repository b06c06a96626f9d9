"""Which units go and which come: counts are exact, and of equal scores the first one is taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from secateur._units import check_scores, lowest

__all__ = ["dropped", "grown"]

_STRIDE = 64
"""One in so many scores is looked at to guess where the wanted ones end."""

_PIECE = 1 << 18
"""Scores that a CPU looks at together, so that what it makes of them stays in its caches."""

_MARGIN = 1.25
"""How many more than wanted the guess should take in, so that it hardly ever falls short."""


def dropped(kept: Tensor, score: Tensor, count: int, *, name: str) -> Tensor:
    """Choose the lowest among the kept units.

    Args:
        kept: 1-D bool, one a unit; True = kept.
        score: 1-D floating-point scores of all units.
        count: How many go, at most as many as are kept.
        name: Dotted name, for the error message.

    Returns:
        int64 positions, sorted.

    Raises:
        InvalidInputError: A score is NaN.
    """
    check_scores({name: score})
    candidates = _candidates(kept, score, count, highest=False)
    return candidates[~lowest(score.index_select(0, candidates), count)]


def grown(kept: Tensor, score: Tensor, count: int, *, name: str) -> Tensor:
    """Choose the highest among the units that are not kept.

    Args:
        kept: 1-D bool, one a unit; True = kept.
        score: 1-D floating-point scores of all units.
        count: How many come, at most as many as are not kept.
        name: Dotted name, for the error message.

    Returns:
        int64 positions, sorted.

    Raises:
        InvalidInputError: A score is NaN.
    """
    check_scores({name: score})
    candidates = _candidates(~kept, score, count, highest=True)
    return candidates[~lowest(-score.index_select(0, candidates), count)]


def _candidates(allowed: Tensor, score: Tensor, count: int, *, highest: bool) -> Tensor:
    """Positions of units among which the wanted ones are for certain: the others cost less to compare than to rank."""
    sample = score[::_STRIDE][allowed[::_STRIDE]]
    rank = int(_MARGIN * count / _STRIDE) + _STRIDE
    if rank < sample.numel():
        place = sample.numel() - rank if highest else rank
        guess = sample.float().kthvalue(place).values.to(score.dtype)
        near = _positions(score, allowed, lambda piece: piece >= guess if highest else piece <= guess)
        if near.numel() >= count:
            return near
    return _positions(score, allowed, None)


def _positions(score: Tensor, allowed: Tensor, is_near: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Positions that are allowed and whose scores are near enough; numpy takes half of torch's time to find them."""
    if score.device.type != "cpu":
        return (allowed if is_near is None else is_near(score).logical_and_(allowed)).nonzero()[:, 0]
    found = []
    for start in range(0, len(score), _PIECE):
        chosen = allowed[start : start + _PIECE]
        if is_near is not None:
            chosen = is_near(score[start : start + _PIECE]).logical_and_(chosen)
        found.append(np.flatnonzero(chosen.numpy()) + start)
    return torch.from_numpy(np.concatenate(found)) if found else torch.empty(0, dtype=torch.int64)
