"""Every block of code of every page runs, and prints and draws what the page shows after it."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from secateur.cli.commands import parser
from tests.documents import CONTRIBUTING, README, ROOT, Block, blocks, run

DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [README, CONTRIBUTING, *sorted(DOCS.rglob("*.md"))]
SHELLS = {"sh", "bash", "shell"}


def python_of(page: Path) -> str:
    """The page's Python, as one program."""
    found = blocks(page.read_text(encoding="utf-8"))
    return "\n".join(block.text for block in found if block.language == "python")


def is_there(line: str) -> bool:
    """Whether a line of a shell is a command that this project has: a target of make, a script, a subcommand."""
    match shlex.split(line.replace(".venv/bin/", ""), comments=True):
        case ["make", target]:
            return bool(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        case ["python", script, *_]:
            return (ROOT / script).is_file()
        case ["secateur", *words]:
            parser().parse_args(words)
            return True
        case ["pip", "install", "-c", constraints, "-e", what]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            return (ROOT / constraints).is_file() and what[2:-1] in extras["optional-dependencies"]
    return False


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_code_runs_and_prints_and_draws_what_is_shown(guide: Path, tmp_path: Path) -> None:
    page = list(blocks(guide.read_text(encoding="utf-8")))
    shown = [after.text for block, after in pairwise(page) if (block.language, after.language) == ("python", "text")]
    assert python_of(guide)
    assert run(python_of(guide), tmp_path) == "".join(shown)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    committed = {name: (PICTURES / name).read_text(encoding="utf-8") for name in drawn}
    assert drawn == committed, "`python -m tests.report` writes the pictures anew"


def test_python_stands_only_on_pages_that_a_test_runs() -> None:
    elsewhere = {page.name for page in PAGES if python_of(page)} - {guide.name for guide in GUIDES}
    assert elsewhere == {README.name, CONTRIBUTING.name}
    assert [block.language for block in blocks(README.read_text(encoding="utf-8"))].count("python") == 1


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{page.name}, line {block.line}")
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language in SHELLS and page.name != "command_line.md"  # whose commands run, in tests/cli
    ],
)
def test_commands_of_a_page_exist(block: Block) -> None:
    lines = block.text.replace("\\\n", " ").splitlines()
    assert [line for line in lines if not is_there(line)] == []


def test_a_command_that_is_not_there_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["make demo  # yes", "make tea", "python benchmarks/none.py", "rm -r .", "secateur doctor train.py -- --x"]
    assert [line for line in lines if not is_there(line)] == lines[1:4]
    with pytest.raises(SystemExit):
        is_there("secateur water")
    assert "water" in capsys.readouterr().err


def test_pages_have_no_other_language() -> None:
    found = {block.language for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))}
    assert {language for language in found if not language.startswith("{")} == {"python", "text"} | SHELLS
