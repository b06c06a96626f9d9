"""The worked examples of CONTRIBUTING.md are true: each runs by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import CONTRIBUTING, Block, blocks, run

EXAMPLES = [block for block in blocks(CONTRIBUTING.read_text(encoding="utf-8")) if block.language == "python"]


def test_contributing_shows_how_to_add_each_kind_of_part() -> None:
    wanted = {"Add a score", "Add a check", "Add an optimizer rule", "Add an op rule"}
    assert wanted <= {block.heading for block in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: f"line {block.line}: {block.heading}")
def test_contributing_example_runs(example: Block, tmp_path: Path) -> None:
    run(example.text, tmp_path)
