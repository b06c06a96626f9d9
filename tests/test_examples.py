"""Every example runs from the first to the last line, with warnings as errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import README, run

EXAMPLES = sorted((README.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints(example: Path, tmp_path: Path) -> None:
    assert run(example.read_text(encoding="utf-8"), tmp_path)
