"""``secateur compress``."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

import secateur
from secateur import Masks
from secateur.cli.models import load_model, model_name
from tests.cli.conftest import Run

ARGUMENTS = ["--arg", "width=256", "--input", "16x8"]


def mlp() -> torch.nn.Module:
    """The model of these commands."""
    return load_model(model_name("my_models:mlp"), {"width": 256}, checkpoint=None, seed=0)


def test_pruned_model_is_packed_and_computes_the_same(run: Run, folder: Path) -> None:
    run("prune", "my_models:mlp", "--arg", "width=256", "--sparsity", "0.95", "--out", "sparse")
    words = [
        "--checkpoint",
        "sparse",
        "--format",
        "csr",
        "--margin",
        "-1000",
        "--threads",
        "1",
        "--out",
        "fast.safetensors",
    ]
    result = run("compress", "my_models:mlp", *ARGUMENTS, *words, "--json")
    found = result.data
    assert found["out"] == "fast.safetensors"
    assert found["error"] < 1e-4
    assert {layer["name"] for layer in found["layers"]} >= {"2"}
    model = secateur.load_(mlp(), "sparse/model.safetensors")
    data = torch.randn(16, 8)
    with torch.no_grad():
        fast = secateur.load_compressed("fast.safetensors", mlp())
        torch.testing.assert_close(fast(data), model(data))


def test_masks_may_come_from_a_file_of_their_own(run: Run, folder: Path) -> None:
    model = mlp()
    masks = secateur.prune_(model, sparsity=0.9)
    safetensors.torch.save_file(masks.state_dict(), "masks.safetensors")
    result = run("compress", "my_models:mlp", *ARGUMENTS, "--masks", "masks.safetensors", "--out", "fast.safetensors")
    assert result.status == 0
    assert "whole model:" in result.out
    data = torch.randn(16, 8)
    with torch.no_grad():
        torch.testing.assert_close(secateur.load_compressed("fast.safetensors", mlp())(data), model(data))


def test_masks_of_another_model_are_refused(run: Run, folder: Path) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(3, 3))
    safetensors.torch.save_file(secateur.prune_(other, sparsity=0.5).state_dict(), "masks.safetensors")
    result = run("compress", "my_models:mlp", *ARGUMENTS, "--masks", "masks.safetensors", "--out", "fast.safetensors")
    assert (result.status, result.out) == (1, "")
    assert "'0.weight'" in result.err
    assert not Path("fast.safetensors").exists()
    assert not Masks(mlp())


def test_file_that_is_there_is_left_alone_unless_forced(run: Run, folder: Path) -> None:
    Path("fast.safetensors").write_text("mine")
    assert run("compress", "my_models:mlp", *ARGUMENTS, "--out", "fast.safetensors").status == 1
    assert Path("fast.safetensors").read_text() == "mine"
    assert run("compress", "my_models:mlp", *ARGUMENTS, "--out", "fast.safetensors", "--force").status == 0
    secateur.load_compressed("fast.safetensors", mlp())
