"""The values that a report is made of."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from secateur.report.figures import Bars, Curves, Line


@given(st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=40), st.integers(0, 7000))
def test_long_curves_keep_their_extremes_and_their_order(values: list[float], more: int) -> None:
    points = [(step, value) for step, value in enumerate([*values, *([0.5] * more)])]
    found = Line.of("loss", points).points
    assert len(found) <= 2000
    assert set(found) <= set(points)
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    if points:
        for extreme in (min, max):
            assert extreme(v for _, v in found) == extreme(v for _, v in points)


def test_long_curves_may_have_holes() -> None:
    points = [(step, math.nan if step % 3 else float(step)) for step in range(9000)]
    found = Line.of("loss", points).points
    assert max(value for _, value in found if math.isfinite(value)) == 8997.0
    assert all(math.isfinite(value) for _, value in found)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 12))
def test_the_largest_bars_stay_in_their_order(values: list[int], count: int) -> None:
    bars = Bars("b", tuple(map(str, range(len(values)))), (("n", tuple(map(float, values))),))
    found = bars.largest(count)
    places = [int(label) for label in found.labels]
    assert places == sorted(places)
    assert sorted(found.series[0][1], reverse=True) == sorted(map(float, values), reverse=True)[:count]
    assert found.series[0][1] == tuple(float(values[place]) for place in places)
    assert ("largest" in found.caption) == (len(values) > count)


def test_curves_span_their_points_and_events() -> None:
    line = Line("a", ((3, 1.0), (9, 2.0)))
    assert Curves("c", (line,), ((1, "cut"),)).span == (1, 9)
    assert Curves("c", (line,), ((1, "cut"),), steps=(0, 20)).span == (0, 20)
    assert Curves("c", ()).span == (0, 0)
