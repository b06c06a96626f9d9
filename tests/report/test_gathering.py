"""One call for a page: what is wrong is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import InvalidInputError
from secateur.report import Report, gather, write_html
from secateur.report.figures import Section

MODEL = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
PLAN = secateur.plan_shrink(MODEL, torch.randn(1, 4), sparsity=0.5)


def test_a_page_is_one_line(tmp_path: Path) -> None:
    path = write_html(tmp_path / "report.html", plan=PLAN, model=MODEL)
    assert path.read_text(encoding="utf-8") == gather(plan=PLAN, model=MODEL).to_html()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_title_says_what_it_is_about() -> None:
    assert gather(plan=PLAN).title == "secateur report"
    assert gather(plan=PLAN, model=MODEL).title == "secateur report: Sequential"
    assert gather(plan=PLAN, model=MODEL, title="Mine").title == "Mine"


def test_the_data_is_json_and_all_that_is_shown() -> None:
    report = gather(plan=PLAN, curves={"loss": [1.0, float("nan")]})
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data == report.to_dict()
    assert len(data["sections"]) == len(report.sections)
    assert repr(report).startswith("Report('secateur report': Summary, ")


def test_facts_follow_the_summary_as_they_are() -> None:
    made = {"input": "1x4", "sparsity of units": 0.5, "seed": 0}
    found = gather(plan=PLAN, facts=made).to_dict()["sections"]
    assert [section["title"] for section in found[:3]] == ["Summary", "How it was made", "Widths before and after"]
    assert found[1]["figures"][0]["rows"] == [list(pair) for pair in made.items()]
    assert gather(plan=PLAN, facts={}) == gather(plan=PLAN)


def test_model_and_plan_are_left_as_they_were() -> None:
    state = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
    gather(plan=PLAN, model=MODEL)
    assert all(torch.equal(tensor, state[name]) for name, tensor in MODEL.state_dict().items())
    assert not secateur.Masks(MODEL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to report"),
        ({"plan": "plan"}, "str is no plan"),
        ({"plan": MODEL}, "Sequential is no plan"),
        ({"model": 3}, "int is no model"),
        ({"training": MODEL}, "Sequential is no training"),
        ({"training": [3]}, "int is no training"),
        ({"plan": PLAN, "latency_table": 3}, "a latency table is measured"),
        ({"plan": PLAN, "facts": "seed 0"}, "facts are words or numbers by name"),
        ({"plan": PLAN, "facts": {"seed": None}}, "facts are words or numbers by name"),
        ({"facts": {"seed": 0}}, "nothing to report"),
    ],
)
def test_wrong_parts_are_refused_and_nothing_is_written(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        write_html(tmp_path / "report.html", **given)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="missing"):
        write_html(tmp_path / "missing" / "report.html", plan=PLAN)
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a folder"):
        write_html(tmp_path, plan=PLAN)
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    path = write_html(tmp_path / "report.html", plan=PLAN)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(NotImplementedError):
        Report("broken", (Section("a", (3,)),)).write_html(path)  # type: ignore[arg-type]
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
