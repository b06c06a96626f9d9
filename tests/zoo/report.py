"""The coverage report, docs/coverage.md, from the outcomes of all models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["written"]

FIRST = Path(__file__).with_name("first_score.md")
"""What came out when the held-out families were run for the first time; written once, by hand."""

_STATUSES = ("exact", "runs", "wrong", "broken", "refused")

_HEAD = """# Coverage

Real models, made from configuration with random weights: every classifier of torchvision that fits into memory, its
segmentation, detection, video and flow models with their heads, one model of each of {timm} families of timm, and small
configurations of {transformers} architectures of transformers with a head. `make coverage` runs all of them, each in
evaluation mode, in double precision where its kernels can, and writes this page.

For each model: noise is put on all parameters, so that nothing is zero or one by initialisation; then a random 30 % of
the units of *every* group go (at least one; two stay), those of residual streams and heads included. A model is
**exact** if

- the smaller model runs, and every op gives results of the shapes that the analysis predicted (as long as the ops come
  in the same order) and is given the same scalars as before;
- its outputs equal those of the *full* model run as if the units were gone: removed positions zero after every op, and
  norms, softmax and other reductions over the positions that stay; to a thousand times the rounding unit of the largest
  output, where the units that went must have moved the output by more than a thousandth;
- it trains: a step with momentum before the cut and one after it, with the momentum carried along.

*Runs* means that the smaller model runs and trains, but that other values lead to other ops (other experts are chosen),
so that it could not be compared.

*Prunable* is the share of the parameters that lie in at least one row or column that can be removed. *Refused* means
that an error with an explanation came instead of a smaller model.

"""


def written(results: Iterable[Mapping[str, Any]], how: str) -> str:
    """The page.

    Args:
        results: Outcomes as dicts; of several for one model, the last counts.
        how: Where and with what they were made.
    """
    rows = list({row["key"]: row for row in results}.values())
    built = [row for row in rows if row["status"] != "unbuilt"]
    suites = {row["key"].split("/")[0]: None for row in rows}
    number = {suite: sum(row["key"].startswith(f"{suite}/") for row in built) for suite in suites}
    lines = [_HEAD.format(timm=number.get("timm", 0), transformers=number.get("transformers", 0)), how, ""]
    lines += ["| suite | models | exact | runs | wrong | broken | refused | prunable, mean | least | 95 % prunable |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_summary(suite, [r for r in built if r["key"].startswith(f"{suite}/")]) for suite in suites]
    lines += [_summary("all", built), ""]
    if FIRST.exists():
        lines += [FIRST.read_text().rstrip(), ""]
    lines += ["## Model by model", ""]
    for suite in suites:
        lines += _table(suite, [row for row in rows if row["key"].startswith(f"{suite}/")])
    return "\n".join(lines).rstrip() + "\n"


def _summary(suite: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line of the first table."""
    counts = [sum(row["status"] == status for row in rows) for status in _STATUSES]
    shares = [row["prunable"] for row in rows if row["status"] == "exact"] or [0.0]
    much = sum(share >= 0.95 for share in shares)
    cells = [
        suite,
        len(rows),
        *counts,
        f"{statistics.mean(shares):.3f}",
        f"{min(shares):.3f}",
        f"{much} of {len(rows)}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _table(suite: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a model, and what keeps its other parameters whole."""
    lines = [f"### {suite}", "", "| model | outcome | error | prunable | parameters | kept whole |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        name = row["key"].split("/", 1)[1]
        if row["status"] == "exact":
            left = f"{row['before']:,} → {row['after']:,}"
            cells = [name, "exact", f"{row['error']:.0e}", f"{row['prunable']:.3f}", left, _reasons(row)]
        else:
            cells = [name, row["status"], "", "", "", row.get("note", "")[:200].replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _reasons(row: Mapping[str, Any]) -> str:
    """Reasons, without names, where more than a twentieth of the parameters stays."""
    if row["prunable"] >= 0.95:
        return ""
    told = dict.fromkeys(line.rsplit(": ", 1)[-1] for line in row["kept"])
    return "; ".join(told).replace("|", "/")
