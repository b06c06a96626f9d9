"""What a report is made of, as values that say nothing of how they are drawn: tables, bars, curves and others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from secateur.report.units import Cell, Unit, plain

__all__ = [
    "Bars",
    "Column",
    "Curves",
    "Fact",
    "Facts",
    "Figure",
    "Line",
    "Note",
    "Notes",
    "Picture",
    "Section",
    "Table",
    "table",
]

_MOST_POINTS = 2000


@dataclass(frozen=True)
class Fact:
    """One key figure: what it is of, before and after, or only the latter."""

    label: str
    after: Cell
    before: Cell = None
    unit: Unit = ""


@dataclass(frozen=True)
class Facts:
    """The key figures of something."""

    facts: tuple[Fact, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        found = ({"label": f.label, "before": plain(f.before), "after": plain(f.after)} for f in self.facts)
        return {"kind": "facts", "facts": list(found)}


@dataclass(frozen=True)
class Column:
    """One column of a table: its head, and what its numbers are of."""

    head: str
    unit: Unit = ""


@dataclass(frozen=True)
class Table:
    """A table. The first column names the rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values."""
        rows = [[plain(cell) for cell in row] for row in self.rows]
        heads = [column.head for column in self.columns]
        return {"kind": "table", "caption": self.caption, "columns": heads, "rows": rows}


@dataclass(frozen=True)
class Bars:
    """One number a thing, or several that are to be compared, as horizontal bars from zero.

    Args:
        caption: What is shown.
        labels: The things.
        series: What the numbers of each thing are, and the numbers.
        unit: What they are of.
        whole: What a bar of full length stands for; the largest number if left out.
    """

    caption: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]
    unit: Unit = ""
    whole: float | None = None

    @property
    def length(self) -> float:
        """What a bar of full length stands for."""
        return self.whole or max((value for _, values in self.series for value in values), default=0.0) or 1.0

    def largest(self, count: int) -> Bars:
        """The things with the largest numbers in the first series, in the order in which they stand."""
        values = self.series[0][1]
        kept = sorted(sorted(range(len(values)), key=lambda place: -values[place])[:count])
        series = tuple((name, tuple(own[place] for place in kept)) for name, own in self.series)
        caption = self.caption if len(kept) == len(values) else f"{self.caption}, the {count} largest of {len(values)}"
        return Bars(caption, tuple(self.labels[place] for place in kept), series, self.unit, self.whole)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        series = {name: [plain(value) for value in values] for name, values in self.series}
        return {"kind": "bars", "caption": self.caption, "labels": list(self.labels), "series": series}


@dataclass(frozen=True)
class Line:
    """One curve: its name, and (step, value) in the order of the steps."""

    name: str
    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[int, float]]) -> Line:
        """A curve of at most 2,000 points: of more, the least and the largest in each of 1,000 equal parts."""
        if len(points) <= _MOST_POINTS:
            return cls(name, tuple(points))
        edges = [len(points) * part // (_MOST_POINTS // 2) for part in range(_MOST_POINTS // 2 + 1)]
        parts = (points[first:last] for first, last in pairwise(edges))
        return cls(name, tuple(point for part in parts for point in _ends(part)))


def _ends(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points with the least and the largest value, by step; finite ones if there are some."""
    finite = [point for point in points if math.isfinite(point[1])] or points[:1]
    return sorted({min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])})


@dataclass(frozen=True)
class Curves:
    """Numbers over the steps of a training, with what happened at some of them.

    Args:
        caption: What is shown.
        lines: The curves.
        events: Step and description of what is marked.
        unit: What the numbers are of.
        steps: The first and the last step that are shown; from the first to the last point or event if left out.
    """

    caption: str
    lines: tuple[Line, ...]
    events: tuple[tuple[int, str], ...] = ()
    unit: Unit = ""
    steps: tuple[int, int] | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step that are shown."""
        if self.steps is not None:
            return self.steps
        steps = [step for line in self.lines for step, _ in line.points] + [step for step, _ in self.events]
        return min(steps, default=0), max(steps, default=0)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        lines = {line.name: [[step, plain(value)] for step, value in line.points] for line in self.lines}
        events = [{"step": step, "what": what} for step, what in self.events]
        return {"kind": "curves", "caption": self.caption, "lines": lines, "events": events}


@dataclass(frozen=True)
class Picture:
    """A drawing, as the text of an SVG."""

    caption: str
    svg: str

    def to_dict(self) -> dict[str, Any]:
        """Its caption; a drawing is no data."""
        return {"kind": "picture", "caption": self.caption}


@dataclass(frozen=True)
class Note:
    """Something to be read: its kind, a sentence, and what else there is to say, by labels; fixes are code."""

    kind: str
    what: str
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Notes:
    """Several notes."""

    notes: tuple[Note, ...]

    def to_dict(self) -> dict[str, Any]:
        """The notes as plain values."""
        return {"kind": "notes", "notes": [{"kind": n.kind, "what": n.what, **dict(n.more)} for n in self.notes]}


Figure = Facts | Table | Bars | Curves | Picture | Notes
"""Whatever a section shows."""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        title: Its heading.
        figures: What it shows.
        text: What there is to know before one looks at them.
    """

    title: str
    figures: tuple[Figure, ...]
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The section as plain values."""
        return {"title": self.title, "text": self.text, "figures": [figure.to_dict() for figure in self.figures]}


def table(caption: str, columns: Iterable[tuple[str, Unit]], rows: Iterable[Iterable[Cell]]) -> Table:
    """A table from heads with units and rows of any kind."""
    return Table(caption, tuple(Column(head, unit) for head, unit in columns), tuple(tuple(row) for row in rows))
