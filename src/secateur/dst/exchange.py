"""Which units go and which come: counts are exact, and of equal scores the first one is taken."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur._native.selecting import chosen
from secateur._units import check_scores, lowest

__all__ = ["dropped", "grown"]

_SHARE = 1 / 128
"""Of the scores, chosen at random, so many are looked at to guess where the wanted ones end."""

_FEW = 1 << 13
"""Units that are ranked without a guess."""

_PIECE = 1 << 18
"""Scores that a CPU looks at together, so that what it makes of them stays in its caches."""

_DEVIATIONS = 5
"""Standard deviations of a rank by which the guess may err."""


def dropped(kept: Tensor, score: Tensor, count: int, *, name: str, sizes: bool = False) -> Tensor:
    """Choose the lowest among the kept units.

    Args:
        kept: 1-D bool, one a unit; True = kept.
        score: 1-D floating-point scores of all units.
        count: How many go, at most as many as are kept.
        name: Dotted name, for the error message.
        sizes: The absolute values of `score` are meant.

    Returns:
        1-D bool, one a unit; True = goes.

    Raises:
        InvalidInputError: A score is NaN.
    """
    found = chosen(score, count, kept=kept, sizes=sizes)
    return _first(kept, _checked(score, name, sizes), count, highest=False) if found is None else found


def grown(kept: Tensor, score: Tensor, count: int, *, name: str, sizes: bool = False) -> Tensor:
    """Choose the highest among the units that are not kept.

    Args:
        kept: 1-D bool, one a unit; True = kept.
        score: 1-D floating-point scores of all units.
        count: How many come, at most as many as are not kept.
        name: Dotted name, for the error message.
        sizes: The absolute values of `score` are meant.

    Returns:
        1-D bool, one a unit; True = comes.

    Raises:
        InvalidInputError: A score is NaN.
    """
    found = chosen(score, count, kept=kept, masked=True, highest=True, sizes=sizes)
    return _first(~kept, _checked(score, name, sizes), count, highest=True) if found is None else found


def _checked(score: Tensor, name: str, sizes: bool) -> Tensor:
    """The scores to compare, none of them NaN."""
    score = score.abs() if sizes else score
    check_scores({name: score})
    return score


def _first(allowed: Tensor, score: Tensor, count: int, *, highest: bool) -> Tensor:
    """The lowest, or the highest, of the allowed units: few are ranked, as most are certain by a guess at the ends."""
    wanted, num_wanted, doubtful = _parted(score, allowed, *_guess(score, allowed, count, highest=highest), highest)
    if not num_wanted <= count <= num_wanted + doubtful.numel():
        everything = (math.inf, -math.inf) if highest else (-math.inf, math.inf)
        wanted, num_wanted, doubtful = _parted(score, allowed, *everything, highest)
    values = score.index_select(0, doubtful)
    others = doubtful[~lowest(-values if highest else values, count - num_wanted)]
    return wanted.index_fill_(0, others, True)


def _guess(score: Tensor, allowed: Tensor, count: int, *, highest: bool) -> tuple[float, float]:
    """Two scores: what is beyond the first is wanted, and what does not reach the second is not, most likely."""
    if score.numel() <= _FEW:
        return (math.inf, -math.inf) if highest else (-math.inf, math.inf)
    number = int(_SHARE * score.numel())
    places = torch.randint(score.numel(), (number,), generator=torch.Generator().manual_seed(0)).to(score.device)
    sample = score.index_select(0, places)[allowed.index_select(0, places)]
    values = _array(-sample if highest else sample)
    rank = count * number / score.numel()
    margin = _DEVIATIONS * math.sqrt(rank) + _DEVIATIONS
    low = _ranked(values, rank - margin) if rank >= margin else -math.inf
    high = _ranked(values, rank + margin)
    return (-low, -high) if highest else (low, high)


def _ranked(values: np.ndarray[Any, Any], rank: float) -> float:
    """The value of this rank; infinity if there are not so many."""
    place = int(rank)
    return float(np.partition(values, place)[place]) if place < len(values) else math.inf


def _parted(score: Tensor, allowed: Tensor, sure: float, last: float, highest: bool) -> tuple[Tensor, int, Tensor]:
    """Which allowed units are beyond the sure score, how many, and the positions of further ones that reach the last.

    On a CPU numpy compares in a sixth of the time that torch takes.
    """
    beyond, reaches = (operator.gt, operator.ge) if highest else (operator.lt, operator.le)
    if score.device.type != "cpu":
        wanted = beyond(score, sure) & allowed
        return wanted, int(wanted.count_nonzero()), (reaches(score, last) & allowed ^ wanted).nonzero()[:, 0]
    wanted, number, doubtful = torch.empty_like(allowed), 0, [np.empty(0, np.int64)]
    for start in range(0, len(score), _PIECE):
        piece, may, into = (_array(each[start : start + _PIECE]) for each in (score, allowed, wanted))
        np.logical_and(beyond(piece, sure), may, out=into)
        number += int(np.count_nonzero(into))
        doubtful.append(np.flatnonzero(reaches(piece, last) & may ^ into) + start)
    return wanted, number, torch.from_numpy(np.concatenate(doubtful))


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor as numpy knows it, sharing its memory where it can."""
    known = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return known.detach().cpu().numpy()
