"""Figures as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from itertools import chain

from secateur.report.charts import bars, curves, legend
from secateur.report.figures import Bars, Column, Curves, Fact, Facts, Figure, Note, Notes, Picture, Table
from secateur.report.markup import Markup, element, joined
from secateur.report.units import Cell, shown

__all__ = ["drawn"]

_MOST_BARS = 24
_MOST_NAMES = 4
_LONG = 24  # characters that do not fit into a narrow column
_NUMBERS = frozenset(("count", "fraction", "seconds", "bytes", "times"))
_HEAD = '<svg xmlns="http://www.w3.org/2000/svg"'


@singledispatch
def drawn(figure: Figure, key: str) -> Markup:
    """Draw a figure.

    Args:
        figure: The figure.
        key: What its ids begin with; no other figure of the page has it.
    """
    raise NotImplementedError(type(figure).__name__)


@drawn.register
def _(figure: Facts, key: str) -> Markup:
    """A list of terms."""
    return element("dl", *map(_fact, figure.facts), class_="facts", id=key)


def _fact(fact: Fact) -> Markup:
    """One key figure, with what it was before and what share of it is left."""
    parts = [element("dt", fact.label), element("dd", shown(fact.after, fact.unit), class_="after")]
    if fact.before is not None:
        was = f"was {_unbroken(shown(fact.before, fact.unit))}"
        if isinstance(fact.before, int | float) and isinstance(fact.after, int | float) and fact.before:
            was += f", {_unbroken(shown(fact.after / fact.before, 'fraction'))} left"
        parts.append(element("dd", was, class_="before"))
    return element("div", *parts)


def _unbroken(text: str) -> str:
    """A number with its unit, on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


@drawn.register
def _(figure: Table, key: str) -> Markup:
    """A table whose heads say what they are heads of, in a region that scrolls sideways by itself."""
    heads = (element("th", column.head, scope="col", class_=_kind(column)) for column in figure.columns)
    parts = [
        element("caption", figure.caption, id=f"{key}-caption"),
        element("thead", element("tr", *heads)),
        element("tbody", *(_line(figure, row) for row in figure.rows)),
    ]
    return element(
        "div",
        element("table", *parts, id=key),
        class_="scroll",
        role="region",
        tabindex=0,
        aria_labelledby=f"{key}-caption",
    )


def _line(figure: Table, row: tuple[Cell, ...]) -> Markup:
    """One row of a table."""
    first, *others = zip(row, figure.columns, strict=True)
    cells = (_place("td", *cell) for cell in others)
    return element("tr", _place("th", *first, scope="row"), *cells)


def _place(tag: str, value: Cell, column: Column, scope: str | None = None) -> Markup:
    """One place of a table."""
    is_long = isinstance(value, str) and len(value) > _LONG and column.unit != "name"
    kind = "long" if is_long else _kind(column)
    return element(tag, _cell(value, column), scope=scope, class_=kind, data_value=_order(value))


def _cell(value: Cell, column: Column) -> Markup:
    """What stands in a place; long lists are folded."""
    if isinstance(value, tuple) and len(value) > _MOST_NAMES:
        few = f"{', '.join(value[:_MOST_NAMES])} and {len(value) - _MOST_NAMES} more"
        return element("details", element("summary", few), element("p", ", ".join(value)))
    return joined([shown(value, column.unit)])


def _order(value: Cell) -> str | None:
    """By what the rows are put in order, where that is not what is written."""
    return repr(value) if isinstance(value, int | float) else None


def _kind(column: Column) -> str | None:
    """Numbers are to the right, names are code."""
    return "number" if column.unit in _NUMBERS else column.unit or None


@drawn.register
def _(figure: Bars, key: str) -> Markup:
    """A chart with its legend."""
    names = [name for name, _ in figure.series]
    largest = figure.largest(_MOST_BARS)
    return _framed(largest.caption, legend(names), bars(largest, key), class_="single" if len(names) == 1 else None)


@drawn.register
def _(figure: Curves, key: str) -> Markup:
    """A chart with its legend and the list of what is marked."""
    names = [line.name for line in figure.lines]
    return _framed(figure.caption, legend(names), curves(figure, key), class_="single" if len(names) == 1 else None)


@drawn.register
def _(figure: Picture, key: str) -> Markup:
    """A drawing in a region that scrolls; page.js adds the means to zoom."""
    named = f'<svg role="img" aria-labelledby="{key}-caption"'
    svg = Markup(figure.svg.replace(_HEAD, named, 1))
    caption = element("figcaption", figure.caption, id=f"{key}-caption")
    region = element(
        "div", svg, class_="picture", id=key, role="region", tabindex=0, aria_label=f"{figure.caption} (scrolls)"
    )
    return element("figure", caption, region)


@drawn.register
def _(figure: Notes, key: str) -> Markup:
    """A list, each item with its parts by label."""
    return element("ul", *map(_note, figure.notes), class_="notes", id=key)


def _note(note: Note) -> Markup:
    """One note."""
    parts = list(chain.from_iterable(_labelled(label, text) for label, text in note.more if text))
    details = element("dl", *parts) if parts else Markup()
    kind = element("strong", note.kind, class_=f"kind {note.kind.split()[0]}")
    return element("li", element("p", kind, " ", note.what), details)


def _labelled(label: str, text: str) -> Iterator[Markup]:
    """A part of a note; what is to be pasted keeps its lines."""
    yield element("dt", label)
    yield element("dd", element("pre", element("code", text), tabindex=0) if label == "fix" else _prose(text))


def _prose(text: str) -> Markup:
    """Running text in which code stands between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return joined([text])
    return joined(element("code", part) if number % 2 else part for number, part in enumerate(parts))


def _framed(caption: str, *content: Markup, class_: str | None = None) -> Markup:
    """A figure with its caption."""
    return element("figure", element("figcaption", caption), *content, class_=class_)
