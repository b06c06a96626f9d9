"""Every Python block of every guide runs, in order; what it prints is what the page shows after it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.documents import README, blocks, run

GUIDES = sorted((README.parent / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_code_runs_and_prints_what_is_shown(guide: Path, tmp_path: Path) -> None:
    page = list(blocks(guide.read_text(encoding="utf-8")))
    code = [block.text for block in page if block.language == "python"]
    shown = [after.text for block, after in pairwise(page) if (block.language, after.language) == ("python", "text")]
    assert code
    assert run("\n".join(code), tmp_path) == "".join(shown)
