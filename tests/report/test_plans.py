"""The parts of a report that are about a plan: their numbers are those of the plan and of the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import ShrinkPlan
from secateur.graph import draw
from secateur.report import Report, gather
from secateur.shrink import GrowPlan, LatencyTable, measure_latency, plan_grow, plan_masked
from tests.report.pages import parsed
from tests.shrink.models import Attention, SmallCNN

X = torch.randn(2, 3, 6, 6)


def figures(report: Report, title: str, kind: str) -> list[dict[str, Any]]:
    """The figures of one kind in the part of this title, as data."""
    (section,) = [section for section in report.to_dict()["sections"] if section["title"] == title]
    return [figure for figure in section["figures"] if figure["kind"] == kind]


def test_the_summary_has_the_totals() -> None:
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)
    (facts,) = figures(gather(plan=plan), "Summary", "facts")
    found = {fact["label"]: (fact["before"], fact["after"]) for fact in facts["facts"]}
    units = (sum(group.before for group in plan.groups), sum(group.after for group in plan.groups))
    assert found == {
        "Parameters": plan.parameters,
        "MACs": plan.macs,
        "Activation memory": plan.activation_bytes,
        "Units in groups": units,
    }
    (bars,) = figures(gather(plan=plan), "Summary", "bars")
    assert bars["series"]["left"][:2] == [new / old for old, new in (plan.parameters, plan.macs)]


def test_predicted_seconds_are_shown_where_they_are_known() -> None:
    model = SmallCNN().eval()
    table = measure_latency(model, secateur.analyze(model, X))
    plan = secateur.plan_shrink(model, X, sparsity=0.4, latency_table=table)
    report = gather(plan=plan, latency_table=table)
    (facts,) = figures(report, "Summary", "facts")
    assert plan.latency is not None
    assert {"label": "Predicted time of products", "before": plan.latency[0], "after": plan.latency[1]} in facts[
        "facts"
    ]
    rows = figures(report, "Where parameters, MACs and time go", "table")[0]
    place = rows["columns"].index("Predicted time before")
    total = sum(row[place] for row in rows["rows"] if row[place] is not None)
    assert abs(total - plan.latency[0]) < 1e-9


def test_the_heading_of_costs_names_those_that_are_shown(tmp_path: Path) -> None:
    model = SmallCNN().eval()
    plan = secateur.plan_shrink(model, X, sparsity=0.4)
    plan.save(tmp_path / "plan.safetensors")
    loaded = secateur.ShrinkPlan.load(tmp_path / "plan.safetensors")
    reports = [gather(plan=plan), gather(plan=loaded, model=model), gather(plan=loaded)]
    assert [report.sections[2].title for report in reports] == [
        "Where parameters and MACs go",
        "Where parameters go",
        "Every layer before and after",
    ]


def test_widths_are_those_of_the_groups() -> None:
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)
    (rows,) = figures(gather(plan=plan), "Widths before and after", "table")
    assert [row[:4] for row in rows["rows"]] == [[g.name, g.kind, g.before, g.after] for g in plan.groups]
    assert [row[4] for row in rows["rows"]] == [g.after / g.before for g in plan.groups]


def test_every_reason_is_given_with_all_that_it_keeps() -> None:
    model = SmallCNN().eval()
    plan = secateur.plan_shrink(model, X, sparsity=0.4)
    (rows,) = figures(gather(plan=plan), "What is kept whole, and why", "table")
    found = {(why, name) for why, names in rows["rows"] for name in names}
    assert plan.coupling is not None
    assert found == {(kept.why, f"{kept.name}[{kept.dim}]") for kept in plan.coupling.kept}


def test_reasons_beyond_the_analysis_are_given_too(tmp_path: Path) -> None:
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)
    more = ("a.weight[0]: it is needed", "a[0], b[1] and 2 more: so: it is", "for no named part")
    for one in (dataclasses.replace(plan, kept_whole=(*plan.kept_whole, *more)), _saved(plan, more, tmp_path)):
        (rows,) = figures(gather(plan=one), "What is kept whole, and why", "table")
        assert rows["rows"][-3:] == [
            ["it is needed", "a.weight[0]"],
            ["so: it is", "a[0], b[1] and 2 more"],
            ["for no named part", None],
        ]


def _saved(plan: ShrinkPlan, kept_whole: tuple[str, ...], folder: Path) -> ShrinkPlan:
    dataclasses.replace(plan, kept_whole=kept_whole).save(folder / "plan")
    return ShrinkPlan.load(folder / "plan")


def test_numbers_in_the_code_that_follow_are_listed() -> None:
    model = Attention(12, 3)
    plan = secateur.plan_shrink(model, torch.randn(2, 5, 12), sparsity=0.4)
    (rows,) = figures(gather(plan=plan), "What follows", "table")
    assert rows["rows"] == [[f"{n.path}.{n.name}".lstrip("."), n.before, n.after] for n in plan.numbers]
    assert ["num_heads", 3, 2] in rows["rows"]


def test_constants_that_go_into_biases_are_listed() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[2] = False
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = 0.0, 2.0
    plan = plan_masked(model, torch.randn(3, 4), {"0.weight": mask})
    (rows,) = figures(gather(plan=plan), "What follows", "table")
    expected = float((2.0 * model[2].weight[:, 2]).abs().max().detach())
    assert [row[0] for row in rows["rows"]] == ["2.bias"]
    assert abs(rows["rows"][0][1] - expected) < 1e-6


def test_the_picture_is_that_of_the_coupling() -> None:
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)
    assert plan.coupling is not None
    root = parsed(gather(plan=plan).to_html())
    (picture,) = [node for node in root if node["class"] == "picture"]
    drawn = parsed(draw(plan.coupling))
    assert [t.text for t in picture.all("text")] == [t.text for t in drawn.all("text")]
    assert len(picture.all("circle")) == len(drawn.all("circle"))


def test_a_plan_that_changes_nothing_says_so() -> None:
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.0)
    assert gather(plan=plan).to_dict()["sections"][0]["text"] == "The plan changes nothing."


def test_a_plan_without_groups_has_a_page() -> None:
    empty = ShrinkPlan({}, secateur.plan_shrink(SmallCNN(), X, sparsity=0.0).fit, (), (), (), (0, 0), (0, 0))
    report = gather(plan=empty)
    assert "No part of the model" in report.to_html()
    assert report.to_dict()["sections"][0]["text"] == "The plan changes nothing."


def test_a_plan_from_a_file_says_what_it_does_not_know(tmp_path: Path) -> None:
    model = SmallCNN().eval()
    secateur.plan_shrink(model, X, sparsity=0.4).save(tmp_path / "plan")
    plan = ShrinkPlan.load(tmp_path / "plan")
    texts = [
        section["text"]
        for given in ({}, {"model": model})
        for section in gather(plan=plan, **given).to_dict()["sections"]
    ]
    assert any("read from a file" in text for text in texts)
    assert any("does not hold an analysis" in text for text in texts)


def test_a_plan_to_grow_has_a_page() -> None:
    model = SmallCNN().eval()
    plan = plan_grow(model, X, add={"stem": 4})
    assert isinstance(plan, GrowPlan)
    report = gather(plan=plan, model=model)
    (rows,) = figures(report, "Widths before and after", "table")
    assert [row[:4] for row in rows["rows"]] == [[g.name, g.kind, g.before, g.after] for g in plan.groups]
    assert report.to_html().startswith("<!DOCTYPE html>")


def test_a_table_for_the_plan_s_model_is_needed() -> None:
    table = LatencyTable(())
    plan = secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)
    with pytest.raises(secateur.InvalidInputError, match="does not cover"):
        gather(plan=plan, latency_table=table)
