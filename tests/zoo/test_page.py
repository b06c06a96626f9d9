"""docs/coverage.md is what the report makes of the outcomes that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.documents import ROOT
from tests.zoo.catalogue import entries
from tests.zoo.report import written

PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")


def outcomes() -> Iterator[dict[str, Any]]:
    """What the tables of the page say of each model, to the digits that they show."""
    for suite, table in re.findall(r"^### (\S+)\n\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        for line in table.splitlines()[2:]:
            if not line:
                continue
            name, status, error, prunable, left, last = (cell.strip() for cell in line.strip("|").split("|"))
            outcome: dict[str, Any] = {"key": f"{suite}/{name}", "status": status, "note": last}
            if status == "exact":
                before, after = (int(count.replace(",", "")) for count in left.split(" → "))
                outcome |= {"error": float(error), "prunable": float(prunable), "before": before, "after": after}
                outcome |= {"kept": [f"tensor: {reason}" for reason in last.split("; ") if reason]}
            yield outcome


def summary(page: str) -> list[str]:
    """The lines of the first table, without the mean, which rounded numbers do not give."""
    lines = page.partition("| suite |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.sub(r"\d\.\d{3} \| (\d\.\d{3} \| \d+ of \d+ \|)$", r"\1", line) for line in lines]


def test_page_is_what_the_report_makes_of_its_rows() -> None:
    how = PAGE.partition("| suite |")[0].rstrip().rpartition("\n")[2]
    again = written(outcomes(), how)
    assert summary(PAGE) == summary(again)
    assert PAGE.partition("| suite |")[0] == again.partition("| suite |")[0]
    assert PAGE.partition("| all |")[2].partition("\n")[2] == again.partition("| all |")[2].partition("\n")[2]


def test_page_has_every_model_of_the_catalogue() -> None:
    assert {outcome["key"] for outcome in outcomes()} == {entry.key for entry in entries()}
