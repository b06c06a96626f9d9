"""A report as one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from secateur.report.drawing import drawn
from secateur.report.figures import Section
from secateur.report.markup import Markup, element, joined

if TYPE_CHECKING:
    from secateur.report.document import Report

__all__ = ["page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The text of the page: the same for the same report."""
    keys = [f"part-{number}" for number in range(1, len(report.sections) + 1)]
    links = (
        element("li", element("a", section.title, href=f"#{key}"))
        for key, section in zip(keys, report.sections, strict=True)
    )
    body = element(
        "body",
        element("a", "Skip to the report", class_="skip", href="#report"),
        element("header", element("h1", report.title), element("nav", element("ul", *links), aria_label="Parts")),
        element(
            "main",
            *(_section(section, key) for section, key in zip(report.sections, keys, strict=True)),
            id="report",
            tabindex=-1,
        ),
        element("footer", element("p", f"Made by secateur {version('secateur')}.")),
        _data(report),
        element("script", _part("page.js")),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", report.title),
        element("style", _part("page.css")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _section(section: Section, key: str) -> Markup:
    """One part, named by its heading."""
    figures = (drawn(figure, f"{key}-{number}") for number, figure in enumerate(section.figures, 1))
    text = [element("p", section.text)] if section.text else []
    heading = element("h2", section.title, id=f"{key}-heading")
    return element("section", heading, *text, *figures, id=key, aria_labelledby=f"{key}-heading")


def _data(report: Report) -> Markup:
    """The figures as data, for programs that read the page."""
    text = json.dumps(report.to_dict(), ensure_ascii=False, separators=(",", ":"))
    return element("script", joined([Markup(text.replace("<", "\\u003c"))]), type="application/json", id="report-data")


def _part(name: str) -> Markup:
    """A file of this package that goes into the page as it is."""
    return Markup(files("secateur.report").joinpath(name).read_text(encoding="utf-8"))
