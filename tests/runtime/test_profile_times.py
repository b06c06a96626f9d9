"""Turns, medians and quartiles, by a clock that is set."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from secateur.runtime import profile_times
from secateur.runtime.profile_times import Latency, latencies


class Clock:
    """A clock that moves when something is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.called: list[str] = []
        monkeypatch.setattr(profile_times.time, "perf_counter", lambda: self.now)

    def call(self, name: str, *durations: float) -> Callable[[], None]:
        steps = itertools.cycle(durations)

        def run() -> None:
            self.called.append(name)
            self.now += next(steps)

        return run


def test_median_and_quartiles_are_those_of_the_calls_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    (found,) = latencies([clock.call("a", 0.1, 0.2, 0.3, 0.4, 0.5)], seconds=1.4)  # 3 of them warm up
    assert found == Latency(pytest.approx(300), (pytest.approx(200), pytest.approx(400)), 5)


def test_models_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = latencies([clock.call("a", 0.05), clock.call("b", 0.1)], seconds=0.6)
    assert clock.called[6:] == ["a", "b"] * 4
    assert [each.calls for each in found] == [4, 4]


def test_short_calls_come_several_at_a_time_and_the_first_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    turn = clock.call("turn", 0.004, 0.001, 0.001, 0.001, 0.001, 0.001)
    warm = iter([clock.call("warm", 0.001)] * 3)
    found = latencies([lambda: next(warm, turn)()], seconds=0.02)
    assert found == [Latency(pytest.approx(1), (pytest.approx(1), pytest.approx(1)), 5 * 3)]


def test_slow_models_run_three_times_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    (found,) = latencies([clock.call("a", 100.0)], seconds=0.1)
    assert found.calls == 3


def test_what_comes_between_is_called_before_every_call_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = [clock.call("a", 0.001), clock.call("b", 0.002)]
    one, other = latencies(calls, seconds=0.0, between=clock.call("between", 5.0))
    assert clock.called == ["between", "a", "between", "b"] * 3
    assert (one.median, other.median) == (pytest.approx(1.0), pytest.approx(2.0))
