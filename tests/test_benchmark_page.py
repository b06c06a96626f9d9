"""Figures come into docs/benchmarks.md by benchmarks/write_page.py, and by nothing else."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.documents import ROOT

TOOL = ROOT / "benchmarks" / "write_page.py"
PAGE = ROOT / "docs" / "benchmarks.md"

BEFORE = "# Figures\n\nProse with 12 in it.\n\n<!-- figures: fake -->\n"
OTHER = "<!-- figures: other -->\n\n| 7 |\n\n<!-- end of figures: other -->\n"
AFTER = f"<!-- end of figures: fake -->\n\nMore prose.\n\n{OTHER}"
SECTION = re.compile(r"^<!-- figures: (\S+) -->$(.*?)^<!-- end of figures: \1 -->$", re.MULTILINE | re.DOTALL)


class Desk:
    """A page, a script, and the tool."""

    def __init__(self, folder: Path) -> None:
        self.script, self.page = folder / "benchmarks" / "fake.py", folder / "docs" / "benchmarks.md"
        for path in (self.script, self.page):
            path.parent.mkdir()
        self.page.write_text(f"{BEFORE}old\n{AFTER}", encoding="utf-8")

    def run(self, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        self.script.write_text(code, encoding="utf-8")
        command = [sys.executable, str(TOOL), str(self.script), "--page", str(self.page), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def section(self) -> str:
        """What stands in the section now; the rest must be as it was."""
        page = self.page.read_text(encoding="utf-8")
        assert page.startswith(BEFORE)
        assert page.endswith(AFTER)
        return page[len(BEFORE) : -len(AFTER)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_section_holds_the_command_how_it_was_made_and_the_output(desk: Desk) -> None:
    code = "import sys\nprint('Title  ', sys.argv[1:], '\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n3 s')"
    done = desk.run(code, "--", "--rounds", "5", "two words")
    assert done.returncode == 0, done.stderr
    assert desk.section() == f"\n{desk.section().strip()}\n\n"
    head, *shown = desk.section().strip().split("\n\n")
    assert head.startswith("`python fake.py --rounds 5 'two words'`, 20")
    assert f"; Python {platform.python_version()}, torch {version('torch')}, secateur {version('secateur')}; " in head
    assert f"{os.cpu_count()} cores" in head
    assert shown == [
        "```text\nTitle   ['--rounds', '5', 'two words']\n```",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "```text\n3 s\n```",
    ]
    assert done.stdout == "Title   ['--rounds', '5', 'two words'] \n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n3 s\n"


def test_script_runs_on_one_thread(desk: Desk) -> None:
    desk.run("import os\nprint(*(os.environ[f'{name}_NUM_THREADS'] for name in ('OMP', 'MKL', 'OPENBLAS')))")
    assert "\n1 1 1\n" in desk.section()


def test_second_run_takes_the_place_of_the_first(desk: Desk) -> None:
    desk.run("print('first')")
    desk.run("print('second')")
    assert "second" in desk.section()
    assert "first" not in desk.section()


def test_head_names_the_libraries_that_the_script_and_its_neighbours_use(desk: Desk) -> None:
    desk.script.with_name("_nets.py").write_text("def load():\n    import scipy.stats as _\n", encoding="utf-8")
    desk.run("import json\nfrom _nets import load\nPACKAGE = 'numpy'\nNONE = 'no_such_package'\nprint(1)")
    assert f", numpy {version('numpy')}, scipy {version('scipy')};" in desk.section()
    assert "json" not in desk.section()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print(1)\nraise SystemExit(3)", "fake.py ended with exit status 3"),
        ("print()", "nothing was printed"),
        ("print('<!-- end of figures: fake -->')", "would end its block or its section"),
        ("print('```')", "would end its block or its section"),
    ],
)
def test_page_stays_as_it_is_when_the_output_is_no_use(desk: Desk, code: str, message: str) -> None:
    done = desk.run(code)
    assert done.returncode == 1
    assert done.stderr.startswith("the page was not changed: ")
    assert message in done.stderr
    assert desk.section() == "old\n"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (OTHER, "no section 'fake'; there are other"),
        (BEFORE, "no counterpart"),
        (AFTER, "no counterpart"),
        (BEFORE + BEFORE + AFTER, "no counterpart"),
        (BEFORE + AFTER + BEFORE + AFTER, "the section 'fake' is there twice"),
    ],
)
def test_page_without_its_section_is_refused_before_the_script_runs(desk: Desk, page: str, message: str) -> None:
    desk.page.write_text(page, encoding="utf-8")
    done = desk.run("print('it runs')")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stdout == ""
    assert desk.page.read_text(encoding="utf-8") == page


def test_saved_output_is_taken_without_a_run_with_its_own_date(desk: Desk, tmp_path: Path) -> None:
    saved = tmp_path / "out.txt"
    saved.write_text("saved figures\n", encoding="utf-8")
    os.utime(saved, (86_400 * 365, 86_400 * 365))
    done = desk.run("raise SystemExit(3)", "--from", str(saved), "--", "--quick")
    assert done.returncode == 0, done.stderr
    assert "`python fake.py --quick`, 1971-01-01: " in desk.section()
    assert "```text\nsaved figures\n```" in desk.section()


def test_what_a_failed_run_printed_can_be_had(desk: Desk) -> None:
    desk.run("print('an hour of figures')\nraise SystemExit(1)")
    saved = desk.page.parents[1] / "build" / "benchmarks" / "fake.txt"
    assert saved.read_text(encoding="utf-8") == "an hour of figures\n"


def test_a_script_can_have_several_sections(desk: Desk) -> None:
    desk.page.write_text(desk.page.read_text(encoding="utf-8").replace("figures: other", "figures: fake-2"), "utf-8")
    done = desk.run("print('new')", "--section", "fake-2")
    assert done.returncode == 0, done.stderr
    page = desk.page.read_text(encoding="utf-8")
    assert "new" in page.split("<!-- figures: fake-2 -->")[1]
    assert page.startswith(f"{BEFORE}old\n")


def test_every_table_of_the_page_lies_in_a_section() -> None:
    rest = SECTION.sub("", PAGE.read_text(encoding="utf-8"))
    assert [line for line in rest.splitlines() if line.startswith("|") or "figures: " in line] == []


def test_every_section_of_the_page_has_a_script_a_date_and_figures() -> None:
    found = SECTION.findall(PAGE.read_text(encoding="utf-8"))
    assert found
    for name, text in found:
        head = re.match(r"\n*`(python benchmarks/\w+\.py[^`]*)`.*? (\d{4}-\d\d-\d\d)", text)
        assert head, name
        script = ROOT / shlex.split(head[1])[1]
        assert script.exists()
        assert name.split("-")[0] == script.stem
        assert re.search(r"^(\|.*\d|```text)", text, re.MULTILINE)


def test_every_benchmark_has_its_section() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")} - {TOOL.stem}
    assert scripts <= {name for name, _ in SECTION.findall(PAGE.read_text(encoding="utf-8"))}
