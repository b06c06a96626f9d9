"""Findings: each is shown with its parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import secateur
from secateur import InvalidInputError
from secateur.doctor import Finding, Findings
from secateur.report import gather
from tests.report.pages import parsed


def test_findings_are_shown_with_their_parts() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight = nn.Parameter(model.weight * 1.0)
    found = secateur.diagnose(model, optimizer)
    assert len(found) == 1
    (note,) = gather(findings=found).to_dict()["sections"][0]["figures"][0]["notes"]
    assert note == {
        "kind": f"error {found[0].code}:",
        "what": found[0].what,
        "why": found[0].why,
        "effect": found[0].effect,
        "fix": found[0].fix,
    }
    root = parsed(gather(findings=found).to_html())
    assert root.all("pre")[0].text == found[0].fix
    assert all("`" not in code.text for code in root.all("code"))


def test_the_step_of_a_watched_finding_is_shown() -> None:
    finding = Finding("lr-zero", ("w",), "the rate is 0.", "by `lr=0`", "", "lr=0.1", severity="warning", step=1200)
    text = gather(findings=[finding]).to_html()
    root = parsed(text)
    (kind,) = [node for node in root if node["class"].startswith("kind")]
    assert (kind.text, kind["class"]) == ("warning lr-zero (before step 1,200):", "kind warning")
    assert [term.text for term in root.all("dt")] == ["why", "fix"]
    assert root.all("code")[0].text == "lr=0"


def test_a_healthy_training_says_so() -> None:
    (section,) = gather(findings=Findings()).sections
    assert (section.text, section.figures) == ("The doctor has found nothing wrong.", ())


@pytest.mark.parametrize("findings", [3, "errors", [3], {"code": 1}, [{"code": "a"}]])
def test_what_are_no_findings_is_refused(findings: object) -> None:
    with pytest.raises(InvalidInputError, match="holds no findings"):
        gather(findings=findings)
