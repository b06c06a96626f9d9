"""The page: well-formed, whole by itself, and open to those who do not see it; whatever the names in it."""

from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import secateur
from secateur.report import Report, Section, gather
from secateur.report.figures import Bars, Curves, Fact, Facts, Line, Note, Notes, table
from tests.report.pages import HOSTILE, REPORTS, Node, deep, parsed


@pytest.fixture(params=REPORTS, scope="module")
def page(request: pytest.FixtureRequest) -> tuple[Report, Node]:
    torch.manual_seed(0)
    report = REPORTS[request.param]()
    return report, parsed(report.to_html())


def test_ids_are_unique_and_all_that_is_referred_to_is_there(page: tuple[Report, Node]) -> None:
    root = page[1]
    ids = [node["id"] for node in root if node["id"]]
    assert len(set(ids)) == len(ids)
    wanted = [link["href"].removeprefix("#") for link in root.all("a")]
    wanted += [one for node in root for name in ("aria-labelledby", "aria-controls") for one in node[name].split()]
    assert wanted
    assert set(wanted) <= set(ids)


def test_nothing_comes_from_elsewhere(page: tuple[Report, Node]) -> None:
    root = page[1]
    assert not root.all("img", "link", "iframe", "object", "embed", "base")
    assert not [node.tag for node in root if {"src", "srcset", "data", "action", "xlink:href"} & node.attributes.keys()]
    assert all(link["href"].startswith("#") for link in root.all("a"))
    assert not re.search(r"url\(|@import", "".join(style.text for style in root.all("style")))
    policy = next(meta["content"] for meta in root.all("meta") if meta["http-equiv"] == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_everything_has_a_name(page: tuple[Report, Node]) -> None:
    root = page[1]
    by_id = {node["id"]: node for node in root if node["id"]}
    for node in root:
        if node["role"] in ("img", "region", "group") or node.tag in ("nav", "section"):
            named_by = " ".join(by_id[one].text for one in node["aria-labelledby"].split())
            assert (node["aria-label"] or named_by).strip(), node.attributes
        if node["tabindex"] == "0":
            assert node["role"] == "region" or node.tag == "pre"
    for drawing in root.all("svg"):
        assert drawing["role"] == "img" or drawing["aria-hidden"] == "true" or drawing["viewbox"]
    assert root.all("html")[0]["lang"] == "en"
    assert root.all("title")[0].text.strip()


def test_tables_have_captions_and_heads(page: tuple[Report, Node]) -> None:
    tables = page[1].all("table")
    assert tables
    for each in tables:
        assert each.children
        assert each.children[0].tag == "caption"  # type: ignore[union-attr]
        assert each.all("caption")[0].text.strip()
        columns = [head for head in each.all("th") if head["scope"] == "col"]
        assert all(head.text.strip() for head in columns)
        for row in each.all("tbody")[0].all("tr"):
            assert [cell["scope"] for cell in row.all("th")] == ["row"]
            assert len(row.all("th", "td")) == len(columns)


def test_headings_are_in_order_and_the_way_past_them_comes_first(page: tuple[Report, Node]) -> None:
    report, root = page
    headings = root.all("h1", "h2", "h3", "h4")
    assert [heading.tag for heading in headings] == ["h1"] + ["h2"] * len(report.sections)
    assert [heading.text for heading in headings] == [report.title, *(section.title for section in report.sections)]
    assert root.all("a", "button")[0]["href"] == f"#{root.all('main')[0]['id']}"
    assert [link.text for link in root.all("nav")[0].all("a")] == [section.title for section in report.sections]


def test_no_width_is_fixed(page: tuple[Report, Node]) -> None:
    root = page[1]
    assert not [node for node in root if node["style"]]
    charts = [node for node in root.all("svg") if node["class"] == "chart"]
    assert all(chart["width"] == "100%" for chart in charts)
    assert any(meta["content"].startswith("width=device-width") for meta in root.all("meta"))
    style = root.all("style")[0].text
    assert not re.search(r"[{;]\s*(min-)?width:\s*\d{3,}px", style)
    assert "prefers-color-scheme: dark" in style


def test_the_data_in_the_page_is_that_of_the_report(page: tuple[Report, Node]) -> None:
    report, root = page
    script = next(node for node in root.all("script") if node["id"] == "report-data")
    found = json.loads(script.text, parse_constant=lambda name: pytest.fail(name))
    assert found == report.to_dict()
    assert [section["title"] for section in found["sections"]] == [section.title for section in report.sections]


def test_the_page_is_the_same_every_time(page: tuple[Report, Node]) -> None:
    assert page[0].to_html() == page[0].to_html()


def test_scripts_are_the_data_and_that_of_the_library_whatever_the_names_are() -> None:
    report = REPORTS["hostile names"]()
    root = parsed(report.to_html())
    data, own = root.all("script")
    assert (data["type"], own.attributes) == ("application/json", {})
    assert "problems" not in own.text
    assert root.all("h1")[0].text == HOSTILE
    shown = [cell.text for cell in root.all("th", "text", "title", "figcaption", "td") if "problems" in cell.text]
    assert shown
    assert all(HOSTILE in text or text.startswith("…") for text in shown)


texts = st.text(min_size=1, max_size=40)
numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(name=texts, values=st.lists(numbers, min_size=1, max_size=6), words=texts, steps=st.integers(0, 10**6))
def test_any_words_and_numbers_make_a_page(name: str, values: list[float], words: str, steps: int) -> None:
    name, words = (text.replace("\r", " ").replace("\0", " ") for text in (name, words))
    points = tuple((steps * place, value) for place, value in enumerate(values))
    figures = (
        Facts((Fact(name, values[0], values[-1], "count"),)),
        table(name, [(words, "name"), ("n", "count"), ("s", "seconds")], [(words, value, value) for value in values]),
        Bars(name, tuple(words for _ in values), ((words, tuple(values)),), "bytes"),
        Curves(name, (Line.of(words, points),), ((steps, words),), "fraction"),
        Notes((Note(words, name, (("why", words), ("fix", name))),)),
    )
    root = parsed(Report(name, (Section(words, figures, name),)).to_html())
    assert root.all("h1")[0].text == name
    assert root.all("h2")[0].text == words
    assert root.all("code")[-1].text == name
    assert len(root.all("script")) == 2
    assert not re.search(
        r'="[^"]*(nan|inf)[^"]*"', "".join(str(n.attributes) for n in root.all("rect", "path", "line"))
    )


def test_a_model_of_200_layers_has_a_small_page() -> None:
    model = deep(100)
    plan = secateur.plan_shrink(model, torch.randn(1, 8, 8, 8), sparsity=0.5)
    text = gather(plan=plan, model=model).to_html()
    tables = parsed(text).all("tbody")
    assert max(len(body.all("tr")) for body in tables) == 201
    assert len(text.encode()) < 1.5e6
