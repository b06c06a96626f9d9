"""Charts: what is drawn is as long, and where, as the numbers say."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from secateur.report.charts import bars, curves
from secateur.report.figures import Bars, Curves, Line
from tests.report.pages import parsed

positive = st.floats(0, 1e12)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_bars_are_as_long_as_their_numbers(pairs: list[tuple[float, float]]) -> None:
    series = tuple((name, tuple(pair[side] for pair in pairs)) for side, name in enumerate(("before", "after")))
    chart = parsed(bars(Bars("b", tuple(map(str, range(len(pairs)))), series), "k"))
    longest = max(value for pair in pairs for value in pair) or 1.0
    found = [[float(rect["width"].removesuffix("%")) for rect in row.all("rect")] for row in chart.all("g")]
    assert len(found) == len(pairs)
    for lengths, pair in zip(found, pairs, strict=True):
        assert all(abs(one - 100 * value / longest) <= 0.006 for one, value in zip(lengths, pair, strict=True))


def test_bars_of_a_whole_are_parts_of_it() -> None:
    chart = parsed(bars(Bars("b", ("a",), (("n", (0.25,)),), "fraction", 1.0), "k"))
    assert [rect["width"] for rect in chart.all("rect")] == ["25.00%"]
    assert [text.text for text in chart.all("text")] == ["a", "25.0 %"]


def test_long_labels_end_as_the_name_does_and_the_whole_name_is_said() -> None:
    name = "encoder." * 12 + "weight"
    chart = parsed(bars(Bars("b", (name,), (("n", (1.0,)),)), "k"))
    shown = [text.text for text in chart.all("text")[:2]]
    assert [len(text) for text in shown] == [30, 76]
    assert all(text.startswith("…") and name.endswith(text[1:]) for text in shown)
    assert chart.all("g")[0].all("title")[0].text.startswith(f"{name}: ")


values = st.floats(-1e9, 1e9, allow_subnormal=False)


@given(st.lists(values, min_size=1, max_size=20), st.integers(-50, 50))
def test_points_of_curves_are_where_their_numbers_are(numbers: list[float], first: int) -> None:
    points = tuple((first + 3 * place, value) for place, value in enumerate(numbers))
    chart = parsed(curves(Curves("c", (Line("a", points),)), "k"))
    (path,) = chart.all("path")
    drawn = [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path["d"])]
    assert len(drawn) == len(points)
    across = [x for x, _ in drawn]
    width = max(1, points[-1][0] - points[0][0])
    assert all(abs(x - 1000 * (step - first) / width) < 0.06 for x, (step, _) in zip(across, points, strict=True))
    assert all(-0.06 <= y <= 1000.06 for _, y in drawn)
    spread = max(numbers) - min(numbers)
    if spread > 1e-3 * max(1e-3, *map(abs, numbers)):
        scale = (max(y for _, y in drawn) - min(y for _, y in drawn)) / spread
        top = drawn[numbers.index(max(numbers))][1]
        for (_, y), value in zip(drawn, numbers, strict=True):
            assert abs((y - top) - scale * (max(numbers) - value)) < 0.4


def test_curves_have_gaps_where_numbers_are_not_finite() -> None:
    points = tuple(enumerate([1.0, math.nan, 2.0, 3.0, math.inf]))
    chart = parsed(curves(Curves("c", (Line("a", points),)), "k"))
    assert chart.all("path")[0]["d"].count("M") == 2


def test_events_stand_at_their_steps() -> None:
    chart = parsed(curves(Curves("c", (Line("a", ((0, 1.0), (200, 2.0))),), ((50, "cut"), (200, "last cut"))), "k"))
    marks = [node for node in chart.all("g") if node.all("circle")]
    assert [mark.all("line")[0]["x1"] for mark in marks] == ["25.00%", "100.00%"]
    assert [mark.all("title")[0].text for mark in marks] == ["step 50: cut", "step 200: last cut"]
