"""Pages in a real browser: readable in both schemes and at any width, usable with a keyboard, and alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.report.browser import ABSENT, chromium, look
from tests.report.pages import REPORTS

pytestmark = pytest.mark.browser

if chromium() is None:
    pytest.skip(ABSENT, allow_module_level=True)

VIEWS = {"light": (1100, False), "dark": (1100, True), "phone": (390, False), "dark phone": (390, True)}


@cache
def text_of(page: str) -> str:
    torch.manual_seed(0)
    return REPORTS[page]().to_html()


@cache
def seen(page: str, view: str, folder: Path) -> dict[str, Any]:
    """What the probe finds in a page."""
    width, is_dark = VIEWS[view]
    found = look(text_of(page), folder, width=width, is_dark=is_dark)
    assert (found["width"], found["isDark"]) == (width, is_dark)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", REPORTS)
def test_a_page_is_as_it_should_be(page: str, view: str, folder: Path) -> None:
    found = seen(page, view, folder)
    assert found["problems"] == []
    assert found["requests"] == []
    assert found["texts"] > 20
    assert found["marks"] > 0
    assert found["faint"] == []
    assert found["scrollWidth"] <= VIEWS[view][0]
    assert found["outside"] == []
    assert found["overlaps"] == []
    assert found["stops"] > 5
    assert found["unreachable"] == []
    assert found["paper"] == ("rgb(20, 23, 27)" if "dark" in view else "rgb(255, 255, 255)")


@pytest.mark.parametrize("view", ["light", "phone"])
def test_tables_are_sorted_by_a_click_and_back_by_another(view: str, folder: Path) -> None:
    tables = seen("everything", view, folder)["sorted"]
    assert tables
    for table in tables:
        (rising, up), (falling, down) = table["orders"]
        assert (rising, falling) == ("ascending", "descending")
        assert sorted(up) == sorted(down) == sorted(table["before"])
        if len(set(up)) == len(up):
            assert up == down[::-1]


@pytest.mark.parametrize("view", ["light", "phone"])
def test_pictures_are_zoomed_by_buttons_and_keys(view: str, folder: Path) -> None:
    pictures = seen("everything", view, folder)["zooms"]
    assert pictures
    for picture in pictures:
        whole, larger, back, actual, fit, zero, smaller = picture["widths"]
        assert (larger, back, actual, zero) == (round(whole * 1.25), whole, whole, whole)
        assert abs(fit - picture["room"]) <= 1
        assert smaller == pytest.approx(whole / 1.25, abs=1)
        assert all(picture["names"])


def test_a_name_that_is_a_script_does_not_run(folder: Path) -> None:
    text = text_of("hostile names")
    assert look(text, folder)["problems"] == []
    assert look(text.replace("&lt;", "<").replace("&gt;", ">"), folder)["problems"] == [1]
