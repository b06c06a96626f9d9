"""MODEL: what it may be, and what is said when it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import secateur
from secateur import InvalidInputError
from secateur.cli.models import keyword, load_model, model_name
from tests.cli.conftest import Run


def load(text: str, *, seed: int = 0, **arguments: object) -> torch.nn.Module:
    """The model of a string."""
    return load_model(model_name(text), arguments, checkpoint=None, seed=seed)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3", 3),
        ("a=0.5", 0.5),
        ("a=(1, 2)", (1, 2)),
        ("a=None", None),
        ("a=gelu", "gelu"),
        ("a='3'", "3"),
        ("a=x=y", "x=y"),
        ("a=", ""),
    ],
)
def test_arguments_are_literals_or_words(text: str, value: object) -> None:
    assert keyword(text) == ("a", value)


def test_factory_gets_its_arguments(folder: Path) -> None:
    assert load("my_models:mlp", width=6)[0].out_features == 6


def test_factory_may_be_inside_a_class(folder: Path) -> None:
    assert load("my_models:Net.tiny")[0].out_features == 6


def test_library_models_come_without_their_weights() -> None:
    assert load("torchvision:resnet18", num_classes=7).fc.out_features == 7
    assert load("timm:vit_tiny_patch16_224", img_size=32, num_classes=5).head.out_features == 5


def test_models_are_in_evaluation_mode(folder: Path) -> None:
    assert not load("my_models:mlp").training


def test_seed_decides_on_random_weights_and_nothing_outside(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (load("my_models:mlp", seed=seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_such_package.models:net", "cannot import 'no_such_package.models': there is no module 'no_such_package'"),
        (
            "my_broken:net",
            r"cannot import 'my_broken': it raised ZeroDivisionError: division by zero\s+at .*my_broken.py:2",
        ),
        ("my_models:no", r"has no 'no'.\s+there are: mlp, noisy, .*broken, Net, cnn, Picky"),
        ("my_models:number", "is no function or class"),
        ("my_models:broken", r"my_models:broken raised KeyError: 'no such act'\s+at .*my_models.py:\d+"),
        ("my_models:Net", "makes no model.\n  found: Net"),
        ("torchvision:resnet1000", r"torchvision has no model 'resnet1000'.\s+there are: .*resnet101"),
        ("timm:vit_huge_patch1", r"timm has no model 'vit_huge_patch1'.\s+there are: .*vit_"),
        ("hf:nowhere", r"there is no folder nowhere"),
    ],
)
def test_model_that_cannot_be_made_is_explained(text: str, told: str, folder: Path) -> None:
    (folder / "my_broken.py").write_text("def net():\n    1 / 0\nnet()\n")
    with pytest.raises(InvalidInputError, match=told):
        load(text)


def test_arguments_that_the_factory_does_not_take_are_shown(run: Run, folder: Path) -> None:
    result = run("analyze", "my_models:mlp", "--input", "2x8", "--arg", "depth=3", "--arg", "act=gelu")
    assert result.status == 1
    assert "unexpected keyword argument 'depth'" in result.err
    assert "called with: depth=3, act='gelu'" in result.err


def test_module_that_misses_another_is_not_taken_for_missing(folder: Path) -> None:
    (folder / "my_broken.py").write_text("import no_such_dependency\n")
    with pytest.raises(InvalidInputError, match="it raised ModuleNotFoundError: No module named 'no_such_dependency'"):
        load("my_broken:net")


# ---- --checkpoint


def full(width: int = 16) -> dict[str, torch.Tensor]:
    """The weights of ``my_models:mlp``."""
    return nn.Sequential(
        *(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    ).state_dict()


@pytest.mark.parametrize("width", [16, 5])
def test_checkpoint_is_loaded_and_may_be_of_a_smaller_model(width: int, folder: Path) -> None:
    safetensors.torch.save_file(full(width), folder / "x.safetensors")
    model = load_model(model_name("my_models:mlp"), {}, checkpoint=str(folder / "x.safetensors"), seed=0)
    assert model[0].out_features == width
    stored = safetensors.torch.load_file(folder / "x.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


def test_masks_of_a_checkpoint_are_in_force(folder: Path) -> None:
    model = load("my_models:mlp")
    masks = secateur.prune_(model, sparsity=0.5)
    secateur.save(model, folder / "x.safetensors")
    loaded = load_model(model_name("my_models:mlp"), {}, checkpoint=str(folder / "x.safetensors"), seed=1)
    assert secateur.Masks(loaded) == masks


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("missing", "there is no file"),
        ("truncated", "is truncated"),
        ("pickled", "is not a safetensors file"),
        ("other", "missing: 4.bias (4,)    unknown: strange (3,)    other shapes: 0.weight (17, 8) for (16, 8)"),
        ("compressed", "holds a compressed model"),
    ],
)
def test_checkpoint_that_does_not_fit_is_an_error_without_traceback(
    damage: str, told: str, run: Run, folder: Path
) -> None:
    path, state = folder / "x.safetensors", full(17 if damage == "other" else 16)
    if damage == "other":
        state["strange"] = torch.zeros(3)
        del state["4.bias"]
    if damage == "pickled":
        torch.save(state, path)
    elif damage == "compressed":
        secateur.compress(load("my_models:mlp"), torch.randn(1, 8)).save(path)
    elif damage != "missing":
        safetensors.torch.save_file(state, path)
    if damage == "truncated":
        os.truncate(path, path.stat().st_size - 10)
    result = run("analyze", "my_models:mlp", "--input", "2x8", "--checkpoint", path)
    assert result.status == 1
    assert told in result.err
    assert "Traceback" not in result.err
