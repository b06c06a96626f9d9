"""Run a benchmark and put what it prints into its section of docs/benchmarks.md, with how it was made.

A section lies between two comments, and only what is between them changes:

    <!-- figures: masks -->
    <!-- end of figures: masks -->

It gets the command, the date, the commit, the machine, the versions and the output, lines of a Markdown table as a
table and all others as they were printed. A script runs as under `make bench`, on one thread unless it says otherwise.
If it fails, prints nothing or is interrupted, the page stays as it is; what it printed lies in build/benchmarks.

    python benchmarks/write_page.py masks [--section NAME] [-- arguments of the script]
    python benchmarks/write_page.py masks --from FILE [-- the arguments that it was printed with]

`--section` is for a script that has several. `--from` takes output that was saved on this machine, with these versions.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from importlib.metadata import packages_distributions, version
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_MARKER = re.compile(r"^<!-- (end of )?figures: (\S+) -->$", re.MULTILINE)


class PageError(Exception):
    """Why the page was left as it is."""


def sections(page: str) -> dict[str, tuple[int, int]]:
    """Where the text of each section begins and ends in the page."""
    markers = list(_MARKER.finditer(page))
    found: dict[str, tuple[int, int]] = {}
    for start, end in zip(markers[::2], [*markers[1::2], None], strict=False):
        if start[1] or end is None or not end[1] or start[2] != end[2]:
            raise PageError(f"the comment {start[0]!r} has no counterpart right after it")
        if start[2] in found:
            raise PageError(f"the section {start[2]!r} is there twice")
        found[start[2]] = (start.end() + 1, end.start())
    return found


def span(page: str, name: str) -> tuple[int, int]:
    """Where one section lies."""
    found = sections(page)
    if name not in found:
        raise PageError(f"no section {name!r}; there are {', '.join(found) or 'none'}")
    return found[name]


def with_section(page: str, name: str, text: str) -> str:
    """The page with another text in one section."""
    start, end = span(page, name)
    return f"{page[:start]}\n{text}\n\n{page[end:]}"


def shown(output: str) -> str:
    """What was printed, as Markdown."""
    if not output.strip():
        raise PageError("nothing was printed")
    if _MARKER.search(output) or re.search(r"^```", output, re.MULTILINE):
        raise PageError("the output has a line that would end its block or its section")
    parts = []
    for is_table, lines in groupby(output.splitlines(), key=lambda line: line.startswith("|")):
        text = "\n".join(line.rstrip() for line in lines).strip("\n")
        if text:
            parts.append(text if is_table else f"```text\n{text}\n```")
    return "\n\n".join(parts)


def libraries(script: Path) -> Iterator[str]:
    """Installed distributions that a script, or a neighbour that it imports, names in imports or in quotes."""
    known, seen, left = packages_distributions(), set[str](), [script]
    while left:
        for name in named(left.pop()) - seen:
            seen.add(name)
            if (neighbour := script.with_name(f"{name}.py")).exists():
                left.append(neighbour)
            elif name in known:
                yield known[name][0]


def named(script: Path) -> set[str]:
    """First parts of the modules that a file imports, and its strings that are names."""
    names = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=imported):
                names |= {alias.name for alias in imported}
            case ast.ImportFrom(module=str(module)) | ast.Constant(value=str(module)):
                names.add(module)
    return {first for name in names if (first := name.split(".")[0]).isidentifier()}


def machine() -> str:
    """Processor, cores and memory."""
    try:
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, ValueError):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    return f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB"


def git(*words: str) -> str:
    """What git says, or nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit that is checked out, and whether the code is another one by now."""
    name = git("rev-parse", "--short=8", "HEAD")
    is_changed = git("status", "--porcelain", "--", "src", "benchmarks")
    return name and f"commit {name}{' and changes on top' if is_changed else ''}"


def versions(script: Path) -> str:
    """Python, and the distributions that matter."""
    rest = sorted({*libraries(script)} - {"torch", "secateur"}, key=str.lower)
    return ", ".join(
        [f"Python {platform.python_version()}", *(f"{d} {version(d)}" for d in ("torch", "secateur", *rest))]
    )


def section_text(script: Path, arguments: Sequence[str], day: date, facts: Sequence[str], output: str) -> str:
    """What stands between the comments."""
    try:
        path = script.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        path = script.name
    command = shlex.join(["python", path, *arguments])
    made = [machine(), versions(script), *facts]
    return f"`{command}`, {day.isoformat()}: {'; '.join(filter(None, made))}.\n\n{shown(output)}"


def printed_by(script: Path, arguments: Sequence[str], saved: Path) -> str:
    """Run a script, passing on what it prints line by line, and return it."""
    saved.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ONE_THREAD | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(script), *arguments]
    with (
        saved.open("w", encoding="utf-8") as file,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
    if process.returncode:
        raise PageError(f"{script.name} ended with exit status {process.returncode}")
    return saved.read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def script_of(name: str) -> Path:
    """The file of a benchmark, by its name or its path."""
    path = Path(name) if name.endswith(".py") else ROOT / "benchmarks" / f"{name}.py"
    if not path.is_file():
        raise PageError(f"there is no script {path.name}")
    return path


def update(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Make the output, and put it into the page."""
    script = script_of(options.script)
    name = options.section or script.stem
    span(options.page.read_text(encoding="utf-8"), name)
    if options.saved:
        output = options.saved.read_text(encoding="utf-8")
        day, facts = datetime.fromtimestamp(options.saved.stat().st_mtime, UTC).date(), []
    else:
        before, began, facts = os.getloadavg()[0], time.monotonic(), [commit()]
        day = datetime.now(UTC).date()
        saved = options.page.resolve().parents[1] / "build" / "benchmarks" / f"{name}.txt"
        output = printed_by(script, arguments, saved)
        facts += [f"load before it {before:.1f}", f"{time.monotonic() - began:.0f} s"]
    text = section_text(script, arguments, day, facts, output)
    write(options.page, with_section(options.page.read_text(encoding="utf-8"), name, text))


def main(words: Sequence[str]) -> None:
    """Do what the command line says."""
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", help="a name in benchmarks/, or the path of a file")
    parser.add_argument("--section", help="the section of the page, if not called as the script")
    parser.add_argument("--from", dest="saved", type=Path, help="output that was saved; the date is the file's")
    parser.add_argument("--page", type=Path, default=PAGE)
    try:
        update(parser.parse_args(words[:end]), words[end + 1 :])
    except (PageError, OSError) as error:
        sys.exit(f"the page was not changed: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
