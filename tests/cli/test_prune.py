"""``secateur prune``."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import secateur
from secateur import Masks, patterns, scores
from secateur.cli.models import load_model, model_name
from secateur.cli.prune import pattern
from tests.cli.conftest import Run, llama


def model_of(name: str, **arguments: object) -> torch.nn.Module:
    """The model that the commands of this file prune."""
    return load_model(model_name(name), arguments, checkpoint=None, seed=0)


def test_weights_and_masks_are_those_of_the_function(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "sparse"
    found = run("prune", "torchvision:resnet18", "--sparsity", "0.9", "--out", out, "--json").data
    model = model_of("torchvision:resnet18")
    masks = secateur.prune_(model, sparsity=0.9)
    assert (found["zeros"], found["sparsity"]) == (masks.num_zeros(), masks.sparsity())
    assert found["tensors"]["fc.weight"]["shape"] == [1000, 512]
    written = secateur.load_(model_of("torchvision:resnet18"), out / "model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(written.parameters(), model.parameters(), strict=True))
    assert Masks(written) == masks


@pytest.mark.parametrize("score", [*scores.SCORES, "synflow"])
def test_every_score_prunes_a_vision_transformer(score: str, run: Run, tmp_path: Path) -> None:
    words = ["--arg", "img_size=32", "--arg", "depth=2", "--sparsity", "0.8", "--score", score]
    words += ["--input", "1x3x32x32"] if score == "synflow" else []
    found = run("prune", "timm:vit_tiny_patch16_224", *words, "--out", tmp_path / "sparse", "--json").data
    assert found["sparsity"] == pytest.approx(0.8, abs=1e-4)
    each = {tensor["sparsity"] for tensor in found["tensors"].values()}
    assert (max(each) - min(each) < 0.01) == (score != "synflow")  # which ranks all weights together


def test_pattern_is_listed_with_what_it_does_not_fit(run: Run, tmp_path: Path) -> None:
    result = run("prune", "torchvision:resnet18", "--pattern", "2:4", "--out", tmp_path / "sparse")
    assert result.status == 0
    assert "skipped: conv1.weight: size 3 of dim 1 is not divisible by 4" in result.out
    found = run("inspect", tmp_path / "sparse", "--json").data
    sparse = {tensor["name"] for tensor in found["tensors"] if "2:4" in tensor["patterns"]}
    assert sparse == {name for name, p in model_of("torchvision:resnet18").named_parameters() if p.dim() > 1} - {
        "conv1.weight"
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("unstructured", patterns.Unstructured()),
        ("1:4", patterns.NM(1, 4)),
        ("8x2", patterns.Block((8, 2))),
        ("rows", patterns.Channel(0)),
        ("columns", patterns.Channel(1)),
        *patterns.PATTERNS.items(),
    ],
)
def test_patterns_are_read(text: str, value: patterns.Pattern) -> None:
    assert pattern(text) == value


@pytest.mark.parametrize("text", ["4:4", "0x3", "stripes", ""])
def test_other_patterns_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        pattern(text)


def test_allocation_and_selection_are_those_of_the_function(run: Run, folder: Path) -> None:
    words = ["--sparsity", "0.5", "--allocation", "global", "--include", "0.weight", "--include", "2.weight"]
    run("prune", "my_models:mlp", *words, "--exclude", "2.*", "--out", "sparse")
    model = model_of("my_models:mlp")
    expected = secateur.prune_(model, sparsity=0.5, allocation=secateur.allocation.global_, include="0.weight")
    assert Masks(secateur.load_(model_of("my_models:mlp"), "sparse")) == expected


def test_synflow_without_an_input_says_what_it_needs(run: Run, folder: Path) -> None:
    result = run("prune", "my_models:mlp", "--sparsity", "0.5", "--score", "synflow", "--out", "sparse")
    assert result.status == 2
    assert "--input 1x3x224x224" in result.err


def test_folder_that_is_there_is_left_alone(run: Run, folder: Path) -> None:
    (folder / "sparse").mkdir()
    assert run("prune", "my_models:mlp", "--sparsity", "0.5", "--out", "sparse").status == 1
    assert list((folder / "sparse").iterdir()) == []


def test_folder_of_transformers_is_written_like_one(run: Run, llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sparse"
    found = run("prune", f"hf:{llama_folder}", "--sparsity", "0.5", "--out", out, "--json").data
    assert {"config.json", "masks.safetensors", "model.safetensors"} <= set(found["files"])
    model = LlamaForCausalLM.from_pretrained(out)
    expected = llama()
    masks = secateur.prune_(expected, sparsity=0.5)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    assert Masks(secateur.load_(llama(), out)) == masks
    assert run("profile", f"hf:{out}", "--input", "ids:1x8").status == 0
