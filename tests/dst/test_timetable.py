"""When masks change: the steps written out, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError
from secateur.dst.timetable import approach, decaying, timetable
from secateur.schedules import constant, cubic, linear


def steps(table) -> list[int]:
    return [step for step in range(60) if table.is_due(step)]


@pytest.mark.parametrize(
    ("begin", "end", "every", "due"),
    [
        (0, 50, 10, [10, 20, 30, 40, 50]),
        (0, 49, 10, [10, 20, 30, 40]),
        (7, 30, 10, [7, 17, 27]),
        (7, 7, 10, [7]),
        (0, 10, 10, [10]),
        (1, 3, 1, [1, 2, 3]),
    ],
)
def test_changes_are_due_every_so_many_steps(begin: int, end: int, every: int, due: list[int]) -> None:
    assert steps(timetable(0.9, 0.3, every=every, begin_step=begin, end_step=end)) == due


def test_nothing_is_due_where_nothing_would_change() -> None:
    assert steps(timetable(0.9, 0.0, every=10, begin_step=0, end_step=50)) == []
    assert steps(timetable(0.9, decaying(0.3, 50), every=10, begin_step=0, end_step=50)) == [10, 20, 30, 40]
    assert steps(timetable(0.9, 0.3, every=None, begin_step=0, end_step=50)) == []


def test_rising_sparsity_is_due_without_any_exchange() -> None:
    rising = linear(0.0, 0.5, begin_step=0, end_step=30)
    assert steps(timetable(rising, 0.0, every=10, begin_step=0, end_step=30)) == [10, 20, 30]


@given(begin=st.integers(0, 20), length=st.integers(1, 60), every=st.integers(1, 20), final=st.floats(0.1, 0.99))
def test_sparsity_has_arrived_exactly_when_the_last_change_is_made(begin, length, every, final) -> None:
    end = begin + max(length, every)
    sparsity = approach(cubic, 0.1, final, every=every, begin_step=begin, end_step=end)
    last = timetable(sparsity, 0.0, every=every, begin_step=begin, end_step=end).steps()[-1]
    assert end - every < last <= end
    assert sparsity(last) == final
    assert sparsity(begin) == 0.1


def test_next_change_is_known() -> None:
    table = timetable(0.9, 0.3, every=10, begin_step=0, end_step=30)
    assert [table.following(step) for step in (0, 9, 10, 29, 30)] == [10, 10, 20, 30, None]


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"every": 0}, "every must be a whole number of optimizer steps, 1 or more"),
        ({"every": 2.5}, "every must be"),
        ({"begin_step": -1}, "begin_step must be"),
        ({"end_step": True}, "end_step must be"),
        ({"begin_step": 100}, r"stop to change before they begin(.|\n)*begin step: 100 +end step: 50"),
        ({"drop_fraction": 1.5}, r"drop_fraction must be in \[0, 1\](.|\n)*1.5"),
        ({"drop_fraction": math.nan}, "drop_fraction must be"),
        ({"drop_fraction": linear(0.3, -0.1, begin_step=0, end_step=50)}, "drop_fraction must be(.|\n)*at step: 40"),
        ({"sparsity": 1.0}, r"sparsity must be a number in \[0, 1\)"),
        ({"sparsity": -0.1}, "sparsity must be"),
        ({"sparsity": math.nan}, "sparsity must be"),
        ({"sparsity": constant(1.0)}, "sparsity must be"),
        ({"sparsity": linear(0.9, 0.5, begin_step=0, end_step=50)}, "sparsity may only rise"),
    ],
)
def test_nonsense_is_refused(asked: dict, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        timetable(**{"sparsity": 0.9, "drop_fraction": 0.3, "every": 10, "begin_step": 0, "end_step": 50, **asked})


@pytest.mark.parametrize(("begin", "end", "every"), [(0, 9, 10), (5, 14, 10), (5, 5, 10)])
def test_too_few_steps_for_the_sparsity_to_rise_are_refused(begin: int, end: int, every: int) -> None:
    with pytest.raises(InvalidInputError, match="no step at which the sparsity could rise"):
        approach(cubic, 0.0, 0.9, every=every, begin_step=begin, end_step=end)
