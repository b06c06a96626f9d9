"""One version, written in pyproject.toml, and what the changelog says of it."""

from __future__ import annotations

import re
from typing import Any

import secateur
from tests.documents import ROOT


def test_version_is_that_of_the_project(project: dict[str, Any]) -> None:
    assert secateur.__version__ == project["version"]


def test_changelog_begins_with_what_is_not_released_or_with_this_version(project: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (.*)$", changelog, re.MULTILINE)[1]
    if ".dev" in project["version"]:
        assert first == "[Unreleased]"
    else:
        assert re.fullmatch(re.escape(f"[{project['version']}]") + r" - \d{4}-\d\d-\d\d", first)
