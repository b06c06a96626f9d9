"""``secateur profile``."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.cli.conftest import Run


def test_figures_of_one_model(run: Run, folder: Path) -> None:
    found = run("profile", "my_models:mlp", "--input", "2x8", "--seconds", "0", "--json").data
    (row,) = found["models"]
    assert (row["name"], row["parameters"], row["macs"], row["latency"]) == ("my_models:mlp", 484, 896, None)


def test_models_with_checkpoints_stand_side_by_side(run: Run, folder: Path) -> None:
    run("prune", "my_models:mlp", "--sparsity", "0.5", "--out", "sparse")
    run("shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--out", "small")
    words = ["my_models:mlp"] * 4 + ["--input", "2x8", "--seconds", "0.01"]
    files = ["-", "-", "sparse", "small"]
    result = run("profile", *words, *(word for file in files for word in ("--checkpoint", file)), "--json")
    rows = result.data["models"]
    assert [row["name"] for row in rows] == [
        "my_models:mlp",
        "my_models:mlp (2)",
        "my_models:mlp sparse",
        "my_models:mlp small",
    ]
    assert [row["macs"] for row in rows] == [896, 896, 896, 2 * (8 * 8 + 8 * 8 + 8 * 4)]
    assert rows[2]["nonzero_macs"] == 448
    assert all(row["latency"]["median"] > 0 for row in rows)


def test_table_shows_times_on_the_threads_that_are_asked_for(run: Run, folder: Path) -> None:
    before = torch.get_num_threads()
    out = run("profile", "my_models:mlp", "--input", "2x8", "--seconds", "0.01", "--threads", "1").out
    assert "1 thread" in out
    assert "median, ms" in out
    assert torch.get_num_threads() == before


def test_number_of_checkpoints_must_be_that_of_models(run: Run, folder: Path) -> None:
    result = run("profile", "my_models:mlp", "my_models:mlp", "--input", "2x8", "--checkpoint", "x")
    assert result.status == 2
    assert "each model has a checkpoint of its own" in result.err
