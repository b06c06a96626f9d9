"""A picture of a coupling: the layers from top to bottom, and a coloured line through all that share a width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from os import PathLike
from pathlib import Path
from string import ascii_lowercase
from xml.sax.saxutils import escape, quoteattr

from secateur._errors import InvalidInputError
from secateur._files import written_file
from secateur.graph.coupling import Coupling, Group
from secateur.graph.labels import Dims, size_of

__all__ = ["draw"]

_COLOURS = (
    "#3d61c4",
    "#b25420",
    "#2a7a51",
    "#bd3656",
    "#7d52ba",
    "#15737e",
    "#84601f",
    "#b43f87",
    "#54741f",
    "#6f534f",
)
_GREY, _PALE, _INK = "#5d6268", "#f4f5f7", "#1c1f23"
_ROW, _CHARACTER, _MARGIN = 20, 7.3, 16


def draw(coupling: Coupling, path: str | PathLike[str] | None = None) -> str:
    """Draw which layers share which width, as SVG.

    Every layer is a row, in the order of the model, with the shape of its weight. Every group is a vertical line
    through the layers that it touches, with the number of its units at the top: a full dot where a unit is a position
    of dim 0 of a tensor (an output of the layer), a ring where it is one of another dim (an input). Groups that do not
    overlap may stand in one column. Grey letters mark dims that are kept whole; the reasons are written below. Pointing
    at a line shows what the group touches.

    Args:
        coupling: The result of `analyze`.
        path: Where to write the file, if anywhere; a name that ends in ``.svg``.

    Returns:
        The text of the SVG, the same for the same coupling.

    Raises:
        InvalidInputError: The name says that it is a file of another kind. Nothing is written then.

    Example:
        >>> from torch import nn, ones
        >>> from secateur.graph import analyze
        >>> svg = draw(analyze(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), ones(1, 4)))
        >>> svg.count('class="group"')
        1
    """
    if path is not None and Path(path).suffix != ".svg":
        raise InvalidInputError(
            "a picture is written as SVG.", path=str(path), fix=f"the name {Path(path).with_suffix('.svg').name!r}"
        )
    rows = _rows(coupling)
    lines = _lines(coupling.groups, rows)
    reasons = list(dict.fromkeys(kept.why for kept in coupling.kept))
    page = _Page(rows, _letters(coupling, rows, reasons), reasons, lines)
    body = [
        *_layers(page),
        *(_group(line, page) for line in lines),
        *_legend(page),
    ]
    width, height = page.width, page.bottom + _ROW * (1 + len(_legend_lines(reasons)))
    svg = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'viewBox="0 0 {width:.0f} {height}" font-family="Menlo, Consolas, monospace" font-size="12">',
            f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
            _text(_MARGIN, _MARGIN + 8, _title(coupling), _INK),
            *body,
            "</svg>\n",
        ]
    )
    if path is not None:
        with written_file(path) as beside:
            beside.write_text(svg, encoding="utf-8")
    return svg


@dataclass(frozen=True)
class _Row:
    """A layer, or a tensor that belongs to the model itself."""

    name: str
    shape: str


@dataclass(frozen=True)
class _Line:
    """Where a group is drawn: its column, and the dims at which it touches each row."""

    group: Group
    number: int
    lane: int
    touched: dict[int, set[int]]


@dataclass(frozen=True)
class _Page:
    """What is drawn, and where it stands, in pixels."""

    rows: dict[str, _Row]
    letters: list[str]
    reasons: list[str]
    lines: list[_Line]

    def y(self, row: int) -> int:
        """Middle of a row."""
        return 2 * _ROW + _MARGIN + _ROW * row

    @property
    def shapes(self) -> float:
        """Left of the shapes."""
        return 2 * _MARGIN + _wide(row.name for row in self.rows.values())

    @property
    def kept(self) -> float:
        """Left of the letters of what is kept."""
        return self.shapes + _wide(row.shape for row in self.rows.values()) + _MARGIN

    @cached_property
    def lanes(self) -> list[float]:
        """Middle of every column, and where another would be; each is as wide as its labels."""
        labels: dict[int, list[str]] = {}
        for line in self.lines:
            labels.setdefault(line.lane, []).append(_label(line.group))
        widths = [_MARGIN + _wide(labels[lane]) for lane in sorted(labels)]
        return list(accumulate(widths, initial=self.kept + _wide(self.letters) + _MARGIN))

    @property
    def bottom(self) -> int:
        """Where the legend begins."""
        return self.y(len(self.rows)) + _ROW // 2

    @property
    def width(self) -> float:
        """Width of the page."""
        return max(self.lanes[-1], 2 * _MARGIN + _wide(_legend_lines(self.reasons)))


def _wide(texts: Iterable[str]) -> float:
    """Width of the longest of some texts."""
    return _CHARACTER * max((len(text) for text in texts), default=0)


def _label(group: Group) -> str:
    """What stands at the top of a line."""
    return f"{len(group.units):,} {group.kind}"


def _legend_lines(reasons: Sequence[str]) -> list[str]:
    """What the signs mean, and why dims are kept."""
    signs = ["● in dim 0 (outputs)   ○ in another dim (inputs)"]
    signs += ["a, b, …  dims kept whole, because:"] if reasons else []
    return [*signs, *(f"{_letter(number)}  {why}" for number, why in enumerate(reasons))]


def _title(coupling: Coupling) -> str:
    """What the picture shows."""
    groups = len(coupling.groups)
    return (
        f"{coupling.num_units:,} units in {groups} group{'s' * (groups != 1)}, {coupling.num_parameters():,} parameters"
    )


def _key(name: str) -> str:
    """The row that a tensor stands in: its module's, or its own if that is the model."""
    return name.rpartition(".")[0] or name


def _rows(coupling: Coupling) -> dict[str, _Row]:
    """The layers in the order of the model, each with the shape of its tensor with the most dims."""
    largest: dict[str, Dims] = {}
    for name, dims in coupling.dims.items():
        known = largest.get(_key(name))
        if known is None or len(dims) > len(known):
            largest[_key(name)] = dims
    return {key: _Row(key, "×".join(str(size_of(dim)) for dim in dims) or "1") for key, dims in largest.items()}


def _lines(groups: Iterable[Group], rows: Iterable[str]) -> list[_Line]:
    """Groups from top to bottom, each in the first column that is free over its rows."""
    place = {key: number for number, key in enumerate(rows)}
    spans: list[tuple[int, int, int, dict[int, set[int]], Group]] = []
    for number, group in enumerate(groups):
        touched: dict[int, set[int]] = {}
        for name, dim in group.footprint:
            touched.setdefault(place[_key(name)], set()).add(dim)
        spans.append((min(touched), max(touched), number, touched, group))
    ends: list[int] = []
    lines = []
    for first, last, number, touched, group in sorted(spans, key=lambda span: span[:3]):
        lane = next((lane for lane, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        lines.append(_Line(group, number, lane, touched))
    return lines


def _letters(coupling: Coupling, rows: Iterable[str], reasons: Sequence[str]) -> list[str]:
    """For every row, a letter for each reason for which some of its dims are kept."""
    found: dict[str, set[int]] = {}
    for kept in coupling.kept:
        found.setdefault(_key(kept.name), set()).add(reasons.index(kept.why))
    return [" ".join(_letter(number) for number in sorted(found.get(key, ()))) for key in rows]


def _letter(number: int) -> str:
    """The letters a to z for 0 to 25, then aa, ab and so on."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]


def _layers(page: _Page) -> Iterator[str]:
    """Every row: its stripe, the layer's name and shape, the letters of what is kept."""
    for number, (row, kept) in enumerate(zip(page.rows.values(), page.letters, strict=True)):
        y = page.y(number)
        if number % 2 == 0:
            yield f'<rect x="0" y="{y - _ROW // 2}" width="100%" height="{_ROW}" fill="{_PALE}"/>'
        yield _text(_MARGIN, y + 4, row.name, _INK)
        yield _text(page.shapes, y + 4, row.shape, _GREY)
        if kept:
            yield _text(page.kept, y + 4, kept, _GREY)


def _group(line: _Line, page: _Page) -> str:
    """A group: its line, a dot or ring in every layer that it touches, the number of its units."""
    colour, x = _COLOURS[line.number % len(_COLOURS)], page.lanes[line.lane]
    first, last = page.y(min(line.touched)), page.y(max(line.touched))
    parts = [
        f'<g class="group" data-name={quoteattr(line.group.name)} fill="{colour}" stroke="{colour}">',
        f"<title>{escape(_described(line.group))}</title>",
        f'<path d="M{x:.1f} {first}V{last}" stroke-width="3" stroke-opacity="0.45"/>',
    ]
    for row, dims in sorted(line.touched.items()):
        fill = "" if 0 in dims else ' fill="#ffffff"'
        parts.append(f'<circle cx="{x:.1f}" cy="{page.y(row)}" r="5" stroke-width="2"{fill}/>')
    parts.append(
        f'<text x="{x + 8:.1f}" y="{first + 4}" font-size="11" stroke="none">{escape(_label(line.group))}</text>'
    )
    return "".join([*parts, "</g>"])


def _described(group: Group) -> str:
    """What a group is and what it touches."""
    return f"{_label(group)}: {', '.join(f'{name}[{dim}]' for name, dim in group.footprint)}"


def _legend(page: _Page) -> Iterator[str]:
    """The lines of the legend."""
    for number, line in enumerate(_legend_lines(page.reasons)):
        yield _text(_MARGIN, page.bottom + _ROW * (number + 1), line, _GREY)


def _text(x: float, y: float, words: str, colour: str) -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" xml:space="preserve">{escape(words)}</text>'
