"""The README's first block runs as written and prints what the page says it prints."""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path

from tests.documents import README, blocks, run


def test_readme_block_runs_and_prints_what_is_shown(tmp_path: Path) -> None:
    code, *after = dropwhile(lambda block: block.language != "python", blocks(README.read_text(encoding="utf-8")))
    printed = run(code.text, tmp_path)
    if after and after[0].language == "text":
        assert printed == after[0].text
