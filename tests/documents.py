"""Code in Markdown pages: taken out, and run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

_FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the last heading and the line of the page that it stands under."""

    language: str
    text: str
    heading: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown page in order.

    Example:
        >>> [(b.language, b.text, b.heading) for b in blocks("# Run\\n```text\\n# 3\\n```\\n")]
        [('text', '# 3\\n', 'Run')]
    """
    for fence in _FENCE.finditer(page):
        above = _FENCE.sub("", page[: fence.start()])
        headings = _HEADING.findall(above)
        yield Block(fence[1], fence[2], headings[-1] if headings else "", page.count("\n", 0, fence.start()) + 1)


def run(code: str, folder: Path) -> str:
    """Run Python code in a fresh interpreter in `folder`, warnings as errors, and return what it prints."""
    script = folder / "block.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"the code ends with exit status {done.returncode}:\n{code}\n{done.stdout}{done.stderr}")
    return done.stdout
