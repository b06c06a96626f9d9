"""The drawn pictures of the docs in a real browser: readable on a phone in both schemes, nothing over anything else."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT
from tests.report.browser import ABSENT, chromium, run

pytestmark = pytest.mark.browser

if chromium() is None:
    pytest.skip(ABSENT, allow_module_level=True)

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
PHONE = 358
"""Pixels that a page of 390 has for its text."""

PROBE = """
const svg = document.querySelector("svg");
const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
const colour = (e) => getComputedStyle(e).fill.match(/[\\d.]+/g).slice(0, 3).map(Number);
const found = {
  svg: box(svg),
  rects: [...svg.querySelectorAll("rect")].map((e) => ({ box: box(e), colour: colour(e) })),
  texts: [...svg.querySelectorAll("text")].map((e) => ({
    words: e.textContent, box: box(e), colour: colour(e),
    pixels: parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a,
  })),
};
const result = document.body.appendChild(document.createElement("pre"));
result.id = "found";
result.textContent = JSON.stringify(found);
"""

Box = tuple[float, float, float, float]


@cache
def seen(picture: Path, folder: Path, is_dark: bool) -> dict[str, Any]:
    """Boxes and colours of what a picture shows at the width of a phone."""
    page = folder / f"{picture.stem}-{is_dark}.html"
    svg = picture.read_text(encoding="utf-8")
    style = f"svg {{ max-width: {PHONE}px; height: auto; display: block }} html {{ color-scheme: light dark }}"
    page.write_text(f"<style>{style}</style><body>{svg}<script>{PROBE}</script></body>", encoding="utf-8")
    dumped = re.search(r'<pre id="found">(.*?)</pre>', run(page, "--dump-dom", width=800, is_dark=is_dark), re.DOTALL)
    assert dumped is not None
    found: dict[str, Any] = json.loads(html.unescape(dumped[1]))
    return found


def is_within(inner: Box, outer: Box) -> bool:
    """Whether one box lies in another."""
    return inner[0] >= outer[0] and inner[1] >= outer[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share more than an edge of three pixels, which letters leave free above and below."""
    return min(one[2], other[2]) - max(one[0], other[0]) > 0 and min(one[3], other[3]) - max(one[1], other[1]) > 3


def luminance(colour: list[float]) -> float:
    """The relative luminance of WCAG 2.1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_can_be_read_on_a_phone(picture: Path, is_dark: bool, folder: Path) -> None:
    found = seen(picture, folder, is_dark)
    assert found["texts"]
    for text in found["texts"]:
        words = text["words"]
        assert text["pixels"] >= 9.5, words
        assert is_within(text["box"], found["svg"]), words
        behind = [rect for rect in found["rects"] if is_within(text["box"], rect["box"])][-1]
        light, dark = sorted((luminance(behind["colour"]), luminance(text["colour"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, words
        cut = [r for r in found["rects"] if overlap(text["box"], r["box"]) and not is_within(text["box"], r["box"])]
        assert cut == [], words
        assert [o["words"] for o in found["texts"] if o is not text and overlap(text["box"], o["box"])] == [], words
