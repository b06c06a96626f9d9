"""Bars and curves as SVG that is as wide as the page and whose text never shrinks: places across are in per cent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from secateur.report.figures import Bars, Curves, Line
from secateur.report.markup import Markup, element
from secateur.report.units import brief, shown

__all__ = ["bars", "curves", "legend"]

_LABEL, _BAR, _GAP = 18, 8, 10
_LONGEST = {"narrow": 30, "wide": 76}  # characters of a label beside its numbers, on screens of two kinds
_TOP, _PLOT, _BOTTOM = 22, 190, 24
_TICKS = 4
_MOST = 1e200  # numbers that are larger, or differences that are smaller than one over it, are no numbers to draw


def bars(figure: Bars, key: str) -> Markup:
    """Horizontal bars, one row a thing, one bar a series.

    Args:
        figure: The numbers.
        key: What its ids begin with.
    """
    row = _LABEL + _BAR * len(figure.series) + _GAP
    rows = [_row(figure, place, row * place) for place in range(len(figure.labels))]
    names = " and ".join(name for name, _ in figure.series)
    what = f"{len(figure.labels)} rows of bars: {names}. The numbers are in the table."
    return _drawing(key, figure.caption, what, row * len(figure.labels), rows)


def _row(figure: Bars, place: int, top: int) -> Markup:
    """One thing: its label, its numbers, its bars."""
    label, values = figure.labels[place], [own[place] for _, own in figure.series]
    said = ", ".join(
        f"{name} {shown(value, figure.unit)}" for (name, _), value in zip(figure.series, values, strict=True)
    )
    parts = [
        element("title", f"{label}: {said}"),
        *_label(label, top + 13),
        element(
            "text",
            " → ".join(brief(value, figure.unit) for value in values),
            x="100%",
            y=top + 13,
            text_anchor="end",
            class_="value",
        ),
    ]
    for number, value in enumerate(values):
        width = 100 * min(1.0, max(0.0, value / figure.length)) if math.isfinite(value) else 0.0
        y = top + _LABEL + _BAR * number
        parts.append(element("rect", x=0, y=y, width=f"{width:.2f}%", height=_BAR - 1, class_=f"series-{number}"))
    return element("g", *parts)


def _label(label: str, y: int) -> Iterator[Markup]:
    """The label; the end of it where it is long, and more of it where there is more room."""
    if len(label) <= _LONGEST["narrow"]:
        yield element("text", label, x=0, y=y, class_="label")
        return
    for screen, longest in _LONGEST.items():
        short = label if len(label) <= longest else f"…{label[1 - longest :]}"
        yield element("text", short, x=0, y=y, class_=f"label {screen}")


def curves(figure: Curves, key: str) -> Markup:
    """Curves over steps, with events as vertical lines.

    Args:
        figure: The numbers.
        key: What its ids begin with.
    """
    values = [value for line in figure.lines for _, value in line.points if _is_drawn(value)]
    values += (0.0, 1.0) if figure.unit == "fraction" else ()
    first, last = figure.span
    ticks = _ticks(min(values, default=0.0), max(values, default=1.0))
    low, high = ticks[0], ticks[-1]
    paths = [_path(line, number, (first, last), (low, high)) for number, line in enumerate(figure.lines) if line.points]
    plot = element(
        "svg",
        *paths,
        x=0,
        y=_TOP,
        width="100%",
        height=_PLOT,
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
        overflow="visible",
    )
    heights = [(tick, _TOP + _PLOT * (high - tick) / (high - low)) for tick in ticks]
    rules = (element("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="rule") for _, y in heights)
    numbers = (
        element("text", shown(round(tick, 12), figure.unit), x=0, y=f"{y - 4:.1f}", class_="tick")
        for tick, y in heights
    )
    parts = [*rules, *_events(figure.events, first, last), plot, *numbers, *_axis(first, last)]
    what = f"{', '.join(line.name for line in figure.lines)} from step {first:,} to {last:,}."
    what += f" {len(figure.events)} events are marked." if figure.events else ""
    return _drawing(key, figure.caption, what, _TOP + _PLOT + _BOTTOM, parts)


def legend(names: Sequence[str]) -> Markup:
    """Which colour is what; nothing for a single series."""
    if len(names) < 2:
        return Markup()
    swatch = '<svg width="22" height="10" aria-hidden="true">{}</svg>'
    items = (
        element("li", Markup(swatch.format(element("rect", width=22, height=10, class_=f"series-{n}"))), name)
        for n, name in enumerate(names)
    )
    return element("ul", *items, class_="legend")


def _drawing(key: str, title: str, what: str, height: int, parts: Iterable[Markup]) -> Markup:
    """The frame of a chart, named and described for those who do not see it."""
    head = [element("title", title, id=f"{key}-title"), element("desc", what, id=f"{key}-desc")]
    return element(
        "svg",
        *head,
        *parts,
        class_="chart",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        width="100%",
        height=max(1, height),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from below the least value to above the largest."""
    if high - low <= max(1 / _MOST, 1e-9 * max(abs(low), abs(high))):
        margin = abs(low) / 2
        low, high = (low - margin, high + margin) if margin > 1 / _MOST else (-1.0, 1.0)
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * n for n in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _events(events: Sequence[tuple[int, str]], first: int, last: int) -> Iterator[Markup]:
    """Vertical lines where something happened."""
    for step, what in events:
        x = f"{_across(step, first, last):.2f}%"
        yield element(
            "g",
            element("title", f"step {step:,}: {what}"),
            element("line", x1=x, x2=x, y1=_TOP - 8, y2=_TOP + _PLOT, class_="event"),
            element("circle", cx=x, cy=_TOP - 11, r=4, class_="event"),
        )


def _axis(first: int, last: int) -> Iterator[Markup]:
    """The first and the last step, and one in the middle."""
    places = ((first, "start"), ((first + last) // 2, "middle"), (last, "end"))
    for step, anchor in places if last > first else places[:1]:
        x = f"{_across(step, first, last):.2f}%"
        words = f"step {step:,}"
        yield element("text", words, x=x, y=_TOP + _PLOT + 17, text_anchor=anchor, class_="tick")


def _is_drawn(value: float) -> bool:
    """Whether a number has a place in a chart."""
    return abs(value) < _MOST


def _across(step: int, first: int, last: int) -> float:
    """Where a step is, in per cent of the width."""
    return 100 * (step - first) / (last - first) if last > first else 0.0


def _path(line: Line, number: int, steps: tuple[int, int], values: tuple[float, float]) -> Markup:
    """One curve, which has gaps where its numbers are not finite."""
    (first, last), (low, high) = steps, values
    pieces = []
    for is_finite, points in groupby(line.points, key=lambda point: _is_drawn(point[1])):
        if is_finite:
            places = (
                f"{10 * _across(step, first, last):.1f},{1000 * (high - value) / (high - low):.1f}"
                for step, value in points
            )
            pieces.append("M" + "L".join(places) + "h0")
    return element("path", d="".join(pieces), class_=f"curve series-{number}", vector_effect="non-scaling-stroke")
