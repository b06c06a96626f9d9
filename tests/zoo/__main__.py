"""Check the whole catalogue, in a process of its own, and write docs/coverage.md: see `make coverage`.

python -m tests.zoo [--part visible|held-out|second|all] [--only GLOB] [--results FILE] [--limit SECONDS] [--write PAGE]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.zoo.catalogue import Entry, entries, is_held_out
from tests.zoo.report import written

PART = {
    "visible": lambda entry: not (is_held_out(entry) or entry.second),
    "held-out": is_held_out,
    "second": lambda entry: entry.second,
    "all": lambda entry: True,
}


def outcomes(keys: list[str], limit: float) -> Iterator[dict[str, Any]]:
    """Results in the order of the keys, from a process that is started again where it hangs or dies."""
    left = list(keys)
    while left:
        command = [sys.executable, "-W", "ignore", "-m", "tests.zoo.check", *left]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            while left and (line := _line(process.stdout.fileno(), limit)) is not None:
                if line.startswith("{"):
                    left.pop(0)
                    yield json.loads(line)
            if left:
                process.kill()
                why = (
                    f"took longer than {limit:.0f} s"
                    if process.wait() == -9
                    else f"the process ended with {process.returncode}"
                )
                yield {"key": left.pop(0), "status": "broken", "note": why}


def _line(source: int, limit: float) -> str | None:
    """The next line of a pipe; None at its end, or when the time is over."""
    end, held = time.monotonic() + limit, b""
    while not held.endswith(b"\n"):
        ready, _, _ = select.select([source], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(source, 1) if ready else b""
        if not piece:
            return None
        held += piece
    return held.decode()


def run_all(chosen: Iterable[Entry], limit: float, results: Path) -> list[dict[str, Any]]:
    """All models, reported as they come in."""
    found = []
    with results.open("a") as file:
        for result in outcomes([entry.key for entry in chosen], limit):
            found.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
            error = result.get("error", float("nan"))
            print(
                f"{result['status']:8} {result['key']:44} error {error:.1e} prunable {result.get('prunable', 0):.3f} "
                f"{result.get('note', '')[:240]}",
                flush=True,
            )
    return found


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PART, default="all")
    parser.add_argument("--only", default="*")
    parser.add_argument("--results", type=Path, default=Path("build/coverage.jsonl"))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one model")
    parser.add_argument("--write", type=Path, help="write the report from all results in the file")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    chosen = [e for e in entries() if PART[arguments.part](e) and fnmatch.fnmatch(e.key, arguments.only)]
    found = run_all(chosen, arguments.limit, arguments.results)
    print(f"{sum(r['status'] == 'exact' for r in found)} of {len(found)} exact")
    if arguments.write is not None:
        lines = arguments.results.read_text().splitlines()
        arguments.write.write_text(written([json.loads(line) for line in lines], _how()))


def _how() -> str:
    """Where and with what the results were made."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "timm", "transformers"))
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    return f"Made on {date.today()} with `make coverage`: {machine}, {versions}, one thread."


if __name__ == "__main__":
    main()
