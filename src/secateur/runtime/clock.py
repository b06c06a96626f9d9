"""How long functions take, measured by turns so that all meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["by_turns"]

Key = TypeVar("Key")

_LEAST_ROUNDS = 5
_MOST_ROUNDS = 1000


def by_turns(
    functions: Mapping[Key, Callable[[], object]], seconds: float, *, between: Callable[[], object] | None = None
) -> dict[Key, float]:
    """Call some functions by turns and time each call.

    Args:
        functions: What to call. Each is called twice first, untimed.
        seconds: About how long to go on, all functions together; there are at least 5 rounds.
        between: Called before every timed call, untimed.

    Returns:
        Median seconds of a call of each.
    """
    for function in functions.values():
        function()
        function()
    times: dict[Key, list[float]] = {key: [] for key in functions}
    end = time.perf_counter() + seconds
    for i in range(_MOST_ROUNDS):
        if i >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for key, function in functions.items():
            if between is not None:
                between()
            start = time.perf_counter()
            function()
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(taken) for key, taken in times.items()}
