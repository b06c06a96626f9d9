"""``secateur analyze``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_groups_and_costs_of_a_small_net(run: Run, folder: Path) -> None:
    found = run("analyze", "my_models:mlp", "--arg", "width=6", "--input", "2x8", "--json").data
    assert (found["parameters"], found["macs"], found["units"]) == (54 + 42 + 28, 2 * (48 + 36 + 24), 12)
    assert [(group["kind"], group["units"]) for group in found["groups"]] == [("neurons", 6), ("neurons", 6)]
    assert {"tensor": "2.weight", "dim": 1, "positions": 1} in found["groups"][0]["touches"]
    assert {(kept["name"], kept["dim"]) for kept in found["kept"]} == {("0.weight", 1), ("4.weight", 0), ("4.bias", 0)}


def test_tables_say_what_goes_and_what_stays_and_why(run: Run, folder: Path) -> None:
    out = run("analyze", "my_models:mlp", "--input", "2x8").out
    for expected in ("neurons", "2.weight[1]", "it is an output of the model", "4.weight[0]", "parameters 484"):
        assert expected in out


def test_ignored_parameters_keep_their_sizes(run: Run, folder: Path) -> None:
    found = run("analyze", "my_models:mlp", "--input", "2x8", "--ignore", "2.*", "--json").data
    assert found["units"] == 0
    assert {kept["why"] for kept in found["kept"]} >= {"it is to be ignored"}


@pytest.mark.parametrize(
    ("model", "shape", "kinds"),
    [
        ("torchvision:resnet18", "1x3x32x32", {"channels"}),
        ("timm:vit_tiny_patch16_224", "1x3x224x224", {"channels", "neurons", "heads"}),
    ],
)
def test_models_of_libraries_have_their_groups(model: str, shape: str, kinds: set[str], run: Run) -> None:
    found = run("analyze", model, "--input", shape, "--json").data
    assert {group["kind"] for group in found["groups"]} == kinds
    assert found["macs"] > 0


def test_keys_and_values_of_a_language_model_are_not_taken_for_outputs(run: Run, llama_folder: Path) -> None:
    found = run("analyze", f"hf:{llama_folder}", "--input", "ids:1x16", "--json").data
    assert {group["kind"] for group in found["groups"]} == {"neurons", "head dims", "kv groups", "heads"}
    assert {kept["name"] for kept in found["kept"]} == {"model.embed_tokens.weight", "lm_head.weight"}
