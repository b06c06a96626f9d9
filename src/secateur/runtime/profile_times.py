"""Measure how long several things take, side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from secateur._passes import without_collections
from secateur._progress import task

__all__ = ["Latency", "latencies"]

_LEAST_ROUNDS = 3
_BURST = 5e-3  # seconds: long beside a refill of the caches
_LONG = 2e-2  # seconds: such calls fill the caches themselves


class Latency(NamedTuple):
    """Wall-clock time of one call, in milliseconds.

    Args:
        median: Half of the calls took no longer.
        quartiles: A quarter of the calls took no longer than the first, a quarter no less than the second.
        calls: How many were timed.
    """

    median: float
    quartiles: tuple[float, float]
    calls: int


@without_collections()
def latencies(
    calls: Sequence[Callable[[], object]], seconds: float, *, between: Callable[[], object] | None = None
) -> list[Latency]:
    """Time several calls in turns, so that a slow moment of the machine touches all alike.

    A turn is one call, or some of a short one: the first of them is not counted, as it finds in the caches what the
    others have left there.

    Args:
        calls: What to call. Each returns when its work is done.
        seconds: How long all of this may take, warm-up aside; at least three turns are made.
        between: Called before every call, untimed; a turn is one call then.

    Returns:
        One result for each.
    """
    times: list[list[float]] = [[] for _ in calls]
    with task("timing", 100) as bar:
        turns = [_turn_of(call) if between is None else 1 for call in calls]
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
            for call, turn, found in zip(calls, turns, times, strict=True):
                if between is not None:
                    between()
                found += _timed(call, turn)
            rounds += 1
            left = max(1 - rounds / _LEAST_ROUNDS, (end - time.perf_counter()) / (seconds or 1.0), 0.0)
            bar.done = 100 * (1 - left)
        bar.done = 100
    return [_summary(found) for found in times]


def _turn_of(call: Callable[[], object]) -> int:
    """How many calls make a turn; the call is warm afterwards."""
    call()
    once = min(_timed(call, 1) + _timed(call, 1))
    return 1 if once > _LONG else 1 + math.ceil(_BURST / max(once, 1e-6))


def _timed(call: Callable[[], object], turn: int) -> list[float]:
    """Seconds of the calls of one turn, the first not counted if there are several."""
    found = []
    for _ in range(turn):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found[1:] or found


def _summary(seconds: Sequence[float]) -> Latency:
    """Median and quartiles."""
    first, median, third = (1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))).tolist()
    return Latency(median, (first, third), len(seconds))
