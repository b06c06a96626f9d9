"""Findings as a sequence, as text and as data."""

from __future__ import annotations

import json

import pytest

from secateur.doctor import Finding, Findings

ERROR = Finding(
    "stale-optimizer-reference", ("0.weight", "2.weight"), "what.", "why.", "effect.", "relink_(m, o)", True
)
WARNING = Finding(
    "zero-gradient", ("0.weight",), "what else.", "", "", "", severity="warning", data={"dead": 1}, step=7
)


def test_findings_put_errors_first_and_keep_the_order_otherwise() -> None:
    other = Finding("lr-zero", (), "a", "b", "c", "d")
    assert list(Findings([WARNING, ERROR, other])) == [ERROR, other, WARNING]


def test_findings_are_a_sequence() -> None:
    found = Findings([ERROR, WARNING])
    assert (len(found), bool(found), found[1], ERROR in found) == (2, True, WARNING, True)
    assert found[1:] == Findings([WARNING])
    assert not Findings()


def test_findings_are_looked_up_by_code_and_by_name() -> None:
    found = Findings([ERROR, WARNING])
    assert found.codes == ("stale-optimizer-reference", "zero-gradient")
    assert found.of("zero-gradient") == Findings([WARNING])
    assert found.of("lr-zero") == Findings()
    assert found.about("2.weight") == Findings([ERROR])
    assert len(found.about("0.weight")) == 2


def test_findings_print_as_text() -> None:
    assert str(Findings([WARNING, ERROR])) == (
        "error stale-optimizer-reference: what.\n"
        "  why:    why.\n"
        "  effect: effect.\n"
        "  fix:    relink_(m, o)\n"
        "warning zero-gradient (before step 7): what else."
    )
    assert str(Findings()) == "no findings"


def test_finding_wraps_prose_but_no_code() -> None:
    code = "`" + "model.layer.weight = nn.Parameter(mask * model.layer.weight)`"
    fix = "x = " + "long + " * 30 + "end"
    text = str(Finding("lr-zero", (), "what " * 40, f"{'word ' * 20}{code} {'word ' * 20}", "", fix))
    lines = text.split("\n")
    assert any(code in line for line in lines)
    assert f"  fix:    {fix}" in lines
    assert all(len(line) <= 112 for line in lines if "long" not in line)


def test_findings_repr_is_one_line_of_codes_and_names() -> None:
    many = Finding("lr-zero", tuple("abcdefgh"), "", "", "", "")
    assert repr(Findings([ERROR, many])) == (
        "Findings(stale-optimizer-reference: 0.weight, 2.weight; lr-zero: a, b, c, d, e, f and 2 more)"
    )


def test_findings_are_plain_data() -> None:
    data = json.loads(json.dumps(Findings([WARNING]).to_dict()))
    assert data == {
        "findings": [
            {
                "code": "zero-gradient",
                "names": ["0.weight"],
                "what": "what else.",
                "why": "",
                "effect": "",
                "fix": "",
                "repairable": False,
                "severity": "warning",
                "data": {"dead": 1},
                "step": 7,
            }
        ]
    }


def test_finding_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot assign"):
        ERROR.code = "other"  # type: ignore[misc]
    assert ERROR.code == "stale-optimizer-reference"
