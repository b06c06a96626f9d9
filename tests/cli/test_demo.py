"""The command line and its demo."""

from __future__ import annotations

import pytest
import torch

from secateur import cli
from secateur.cli.digits import RUNS, cnn, digits, shrink, train
from tests.cli.conftest import Run


def test_demo_prints_runs_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--steps", "60"]) == 0
    out = capsys.readouterr().out
    for expected in (*RUNS, "stale-optimizer-reference", "stale-autograd-graph", "returned an invalid gradient"):
        assert expected in out
    assert out.count("the next step moves 0.weight by") == 2
    assert "moves 0.weight by 0.0000" not in out


def test_demo_runs_have_the_sizes_that_the_page_promises() -> None:
    outcomes = [
        train(title, method, digits(), steps=30, seed=0, advance=lambda: None) for title, method in RUNS.items()
    ]
    dense, masked, shrunk = outcomes

    def sizes(first: int, second: int, third: int) -> tuple[int, int]:
        """Numbers of weights and of biases; 2 x 2 places are left after pooling twice."""
        weights = 9 * first + 9 * first * second + 4 * second * third + 10 * third
        return weights, first + second + third + 10

    weights, biases = sizes(32, 64, 256)
    assert dense.parameters == dense.nonzero == masked.parameters == weights + biases
    assert masked.nonzero == pytest.approx(weights / 10 + biases, abs=4)  # rounded tensor by tensor
    # a fifth of 32, 64 and 256 units is left, to the nearest whole number of units that go
    assert shrunk.parameters == shrunk.nonzero == sum(sizes(32 - 26, 64 - 51, 256 - 205))


def test_demo_shrinks_in_eight_cuts_that_the_optimizer_follows() -> None:
    model = cnn()
    optimizer = torch.optim.AdamW(model.parameters())
    change = shrink(model, optimizer, 30)
    widths = []
    for step in range(1, 31):
        optimizer.zero_grad()
        model(torch.ones(2, 1, 8, 8)).square().sum().backward()
        optimizer.step()
        change.after_step(step)
        widths.append(model[0].out_channels)
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in model.parameters())
    cuts = [32 - round(0.8 * 32 * (1 - (1 - cut / 8) ** 3)) for cut in range(1, 9)]
    assert list(dict.fromkeys(widths)) == list(dict.fromkeys([32, *cuts]))
    assert change.note() == "ShrinkSchedule: step 30, 70 of 352 units left"


def test_demo_refuses_too_few_steps_without_a_traceback(run: Run) -> None:
    result = run("demo", "--steps", "3")
    assert result.status == 2
    assert "at least 30 steps" in result.err


def test_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "COMMAND" in capsys.readouterr().err


def test_demo_gives_its_figures_as_json(run: Run) -> None:
    data = run("demo", "--steps", "60", "--json").data
    assert [each["title"] for each in data["runs"]] == list(RUNS)
    assert all(0 < each["nonzero"] <= each["parameters"] for each in data["runs"])
