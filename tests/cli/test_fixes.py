"""Advice of the library's errors, said in options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from secateur._errors import InvalidInputError, SecateurError
from secateur.cli.fixes import in_options
from secateur.shrink import Budget
from tests.cli.conftest import Run

KEYWORD = re.compile(r"(?<![-\w])(sparsity|budget|macs|scope|score|round_to|min_units|include|exclude|ignore)=")
"""An argument as Python writes it."""


@pytest.mark.parametrize(
    ("fix", "options"),
    [
        ("sparsity=0.5, or budget=Budget(macs=0.5)", "--sparsity 0.5, or --macs 0.5"),
        ('a larger sparsity, or scope="global"', "a larger sparsity, or --scope global"),
        ('round_to=16, round_to="auto", or round_to=None for any number', "--round-to 16, --round-to auto"),
        ("score=secateur.shrink.l1, or another of secateur.shrink.UNIT_SCORES", "--score l1"),
        ("exclude=[…], or allocation=partial(allocation.uniform, min_units=1)", "--exclude GLOB"),
        ("exclude=[…] leaves them out, strict=False skips them and says so", "--exclude GLOB leaves them out"),
        (
            "no biases; include=['*'] takes all",
            "no biases; --include '*' takes all",
        ),
        ("a lower sparsity, fewer min_units, or exclude=[…]", "a lower sparsity, or --exclude GLOB"),
        ("allocation=allocation.uniform, with sparsity= left out", "--allocation uniform, with --sparsity left out"),
        ('overrides={"encoder.*.fc1": 0.7}', '--override "encoder.*.fc1=0.7"'),
        ("seconds=1.0", "--seconds 1.0"),
        ("min_units=1 leaves a unit in each tensor", ""),
        ("lambda model: model(ones).logits picks the output that counts", ""),
        ("pip install 'secateur[vision]'", "pip install 'secateur[vision]'"),
        ("secateur.load_compressed(path, model)", "secateur.load_compressed(path, model)"),
        ("torch.save(model.state_dict(), path)", "torch.save(model.state_dict(), path)"),
    ],
)
def test_advice_is_in_options_or_left_out(fix: str, options: str) -> None:
    told = in_options(str(SecateurError("no.", fix=fix, asked=3)))
    assert told == str(SecateurError("no.", fix=options, asked=3))


def test_budget_is_told_by_what_was_given() -> None:
    error = InvalidInputError("the budget cannot be met.", budget=Budget(params=0.25, macs=0.5))
    assert in_options(str(error)).endswith("budget: --macs 0.5 --params 0.25")


@pytest.mark.parametrize(
    "words",
    [
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.01"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--min-units", 16],
        ["shrink", "my_models:mlp", "--input", "2x8", "--macs", "0.001"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--score", "batch_norm_scale"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--override", "no.*=0.3"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--override", "4.weight=0.3"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--input", "2x8", "--sparsity", "0.5"],
        ["shrink", "my_models:mlp", "--input", "2x9", "--sparsity", "0.5"],
        ["prune", "my_models:mlp", "--sparsity", "0.9", "--pattern", "2:4"],
        ["prune", "my_models:mlp", "--sparsity", "0.9", "--include", "no.*"],
        ["prune", "my_models:mlp", "--sparsity", "0.9", "--pattern", "5:7"],
        ["prune", "my_models:mlp", "--sparsity", "0.99", "--pattern", "rows"],
        ["prune", "my_models:mlp", "--sparsity", "0.99", "--pattern", "rows", "--allocation", "global"],
    ],
)
def test_errors_of_commands_speak_of_options(words: list[str], run: Run, folder: Path) -> None:
    result = run(*words, "--out", "x")
    assert result.status == 1
    assert not KEYWORD.search(result.err), result.err
    assert "example_inputs" not in result.err
    assert "tuple or list" not in result.err
