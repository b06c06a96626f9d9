"""The command line and its demo."""

from __future__ import annotations

import pytest

from secateur import cli
from secateur.cli.digits import RUNS, digits, train


def test_demo_prints_runs_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--steps", "60"]) == 0
    out = capsys.readouterr().out
    for expected in (*RUNS, "stale-optimizer-reference", "stale-autograd-graph", "returned an invalid gradient"):
        assert expected in out
    assert out.count("the next step moves 0.weight by") == 2
    assert "moves 0.weight by 0.0000" not in out


def test_demo_runs_have_the_sizes_that_the_page_promises() -> None:
    outcomes = [train(title, event, digits(), steps=30, seed=0, advance=lambda: None) for title, event in RUNS.items()]
    dense, masked, shrunk = outcomes
    weights = 64 * 300 + 300 * 100 + 100 * 10
    assert dense.parameters == dense.nonzero == masked.parameters == weights + 410
    assert masked.nonzero == weights // 10 + 410
    assert shrunk.parameters == shrunk.nonzero == 64 * 150 + 150 * 50 + 50 * 10 + 210


def test_demo_refuses_too_few_steps_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--steps", "3"]) == 1
    assert "at least 30 steps" in capsys.readouterr().err


def test_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "COMMAND" in capsys.readouterr().err
