"""What ``import secateur`` takes beyond ``import torch``, which it begins with.

Both are run as processes of their own, in turn, on one thread, with their bytecode kept as Python and pip do by
default. They end without tidying up, which takes torch longer than what is measured here, now more, now less. A
difference is that between neighbours, so that a slow minute of the machine touches both; medians, milliseconds.

    python benchmarks/import_time.py [--rounds 25] [--modules]

With ``--modules`` it prints what each part of the package takes to run, as ``python -X importtime`` counts it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter

PROGRAMS = ("import torch", "import secateur")
LIMIT = 300.0


def environment() -> dict[str, str]:
    """The variables of this process, with one thread and with bytecode kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": "1"}


def milliseconds(program: str) -> tuple[float, float]:
    """Wall and CPU time of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", f"{program}, os; os._exit(0)"], env=environment(), check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * wall, 1e3 * cpu


def measure(rounds: int) -> None:
    """Print the table; the first round warms up."""
    times: dict[str, list[tuple[float, float]]] = {program: [] for program in PROGRAMS}
    for number in range(rounds + 1):
        for program in PROGRAMS if number % 2 else PROGRAMS[::-1]:
            times[program].append(milliseconds(program))
    torch, secateur = (taken[1:] for taken in times.values())
    beyond = [(ours[0] - theirs[0], ours[1] - theirs[1]) for theirs, ours in zip(torch, secateur, strict=True)]
    print("| | wall, ms | CPU, ms |\n| --- | --- | --- |")
    for name, taken in {"`import torch`": torch, "`import secateur`": secateur, "beyond torch's own": beyond}.items():
        wall, cpu = map(statistics.median, zip(*taken, strict=True))
        print(f"| {name} | {wall:.0f} | {cpu:.0f} |")
    print(f"| allowed | {LIMIT:.0f} | |")


def parts() -> Counter[str]:
    """Milliseconds of each part of the package, and of each library that only the package imports."""
    found: Counter[str] = Counter()
    program = [sys.executable, "-X", "importtime", "-c", "import torch, sys; print(file=sys.stderr); import secateur"]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, check=True)
    for line in done.stderr.split("\n\n")[-1].splitlines():
        microseconds, _, name = line.removeprefix("import time:").split("|")
        own = name.strip().split(".")
        found[".".join(own[:2] if own[0] == "secateur" else own[:1])] += int(microseconds) / 1e3
    return found


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--modules", action="store_true")
    options = parser.parse_args()
    measure(options.rounds)
    if options.modules:
        print("\n| part | its own code, ms |\n| --- | --- |")
        for name, taken in parts().most_common():
            print(f"| {name} | {taken:.1f} |")


if __name__ == "__main__":
    main()
