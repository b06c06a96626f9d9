"""Links from page to page lead to files and headings that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        text = text.replace(f"```{block.language}\n{block.text}```", "")
    return text


def anchors(page: Path) -> Iterator[str]:
    """The anchors that headings have, as GitHub and Sphinx make them."""
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken(page: Path) -> list[str]:
    """The links of a page, other than those to the network, that lead nowhere."""
    found = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" in link or (target.exists() and (not anchor or anchor in anchors(target))):
            continue
        found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_picture_is_on_a_page() -> None:
    shown = {Path(link).name for page in PAGES for link in LINK.findall(prose(page))}
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} <= shown


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# When did it happen?\n\n```text\n# no heading\n```\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[a](other.md#when-did-it-happen) [b](none.md) [c](other.md#no-heading) [d](#here) [e](#there)\n"
        "[f](https://example.org/none.md)\n\n```text\n[g](in_code.md)\n```\n",
        encoding="utf-8",
    )
    assert broken(page) == ["none.md", "other.md#no-heading", "#there"]
