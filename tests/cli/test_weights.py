"""``--checkpoint``: weights that fit, and lists of what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import secateur
from secateur import InvalidInputError, ShapeError
from secateur.cli.weights import load_weights
from tests.cli.conftest import Run, llama


def mlp(width: int = 6) -> nn.Sequential:
    """A small net."""
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def test_state_dict_is_loaded(tmp_path: Path) -> None:
    source, target = mlp(), mlp()
    source[1].running_mean.fill_(3.0)
    safetensors.torch.save_file(source.state_dict(), tmp_path / "x.safetensors")
    load_weights(target, str(tmp_path / "x.safetensors"))
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )


def test_model_that_secateur_saved_smaller_is_loaded(tmp_path: Path) -> None:
    source, target = mlp(), mlp()
    secateur.shrink_(source, torch.randn(3, 4), sparsity=0.5)
    secateur.save(source, tmp_path / "x.safetensors")
    load_weights(target, str(tmp_path / "x.safetensors"))
    data = torch.randn(3, 4)
    assert torch.equal(source.eval()(data), target.eval()(data))


def test_tied_weights_may_be_there_once(tmp_path: Path) -> None:
    model = llama()
    model.lm_head.weight = model.model.embed_tokens.weight
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    safetensors.torch.save_file(state, tmp_path / "x.safetensors")
    other = llama()
    other.lm_head.weight = other.model.embed_tokens.weight
    nn.init.zeros_(other.lm_head.weight)
    load_weights(other, str(tmp_path / "x.safetensors"))
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)


def test_names_and_shapes_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = mlp(5).state_dict()
    state["strange"] = torch.zeros(3)
    del state["3.bias"]
    safetensors.torch.save_file(state, tmp_path / "x.safetensors")
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ShapeError, match="does not fit Sequential") as caught:
        load_weights(model, str(tmp_path / "x.safetensors"))
    for line in (
        "missing: 3.bias (2,)",
        "unknown: strange (3,)",
        "0.weight (5, 4) for (6, 4)",
        "3.weight (2, 5) for (2, 6)",
    ):
        assert line in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_long_lists_are_cut_off(tmp_path: Path) -> None:
    safetensors.torch.save_file({f"x{n}": torch.zeros(1) for n in range(20)}, tmp_path / "x.safetensors")
    with pytest.raises(ShapeError, match="and 12 more"):
        load_weights(mlp(), str(tmp_path / "x.safetensors"))


def test_compressed_model_is_no_checkpoint(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    secateur.prune_(model, sparsity=0.9)
    secateur.compress(model, torch.randn(1, 8)).save(tmp_path / "x.safetensors")
    with pytest.raises(InvalidInputError, match="is a compressed model"):
        load_weights(model, str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize("damage", ["missing", "truncated", "pickled"])
def test_damaged_checkpoint_is_an_error_of_one_line(damage: str, run: Run, folder: Path) -> None:
    path = folder / "x.safetensors"
    if damage == "pickled":
        torch.save(mlp().state_dict(), path)
    elif damage == "truncated":
        safetensors.torch.save_file(mlp().state_dict(), path)
        path.write_bytes(path.read_bytes()[:-10])
    result = run("analyze", "my_models:mlp", "--input", "2x8", "--checkpoint", path)
    assert result.status == 1
    assert {"missing": "there is no file", "truncated": "is truncated", "pickled": "is not a safetensors file"}[
        damage
    ] in result.err
    assert "Traceback" not in result.err
