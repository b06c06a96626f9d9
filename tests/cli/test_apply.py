"""``secateur apply``: a checkpoint cut without the model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

import secateur
from secateur import ShrinkPlan
from secateur.checkpoints import open_checkpoint
from tests.cli.conftest import Run, llama


def stored(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint."""
    return {each.name: each.tensor() for each in open_checkpoint(path)}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Whether two state dicts are the same."""
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_file_becomes_the_state_of_the_shrunk_model(run: Run, tmp_path: Path) -> None:
    model = torchvision.models.resnet18(weights=None).eval()
    for module in model.modules():  # constants of removed channels then go into the biases behind them
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.bias)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    plan = secateur.plan_shrink(model, torch.randn(1, 3, 32, 32), sparsity=0.4)
    plan.save(tmp_path / "plan.safetensors")
    result = run(
        *("apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small", "--json")
    )
    assert result.data["bytes"]["after"] == sum(each.num_bytes for each in open_checkpoint(tmp_path / "small"))
    assert result.data["cut"] == len(plan.shapes)
    assert_equal(stored(tmp_path / "small"), plan.apply_(model).state_dict())
    loaded = secateur.load_(torchvision.models.resnet18(weights=None), safetensors.torch.load_file(tmp_path / "small"))
    assert_equal(loaded.state_dict(), model.state_dict())


def test_constants_go_into_biases_before_they_are_cut(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    masks["0.weight"][::2] = False
    plan = secateur.plan_shrink(model, torch.randn(2, 6), masks=secateur.Masks.from_dict(model, masks))
    assert plan.bias_changes
    plan.save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    words = ["apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small"]
    assert run(*words).status == 0
    assert_equal(stored(tmp_path / "small"), plan.apply_to(model.state_dict()))


@pytest.mark.parametrize("tied", [False, True])
def test_language_model_is_cut_shard_by_shard(tied: bool, run: Run, tmp_path: Path) -> None:
    model = llama()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.config.use_cache = False
    model.save_pretrained(tmp_path / "full", max_shard_size="40KB")
    plan = secateur.plan_shrink(model, torch.randint(50, (1, 8)), sparsity=0.5)
    plan.save(tmp_path / "plan.safetensors")
    assert run("apply", tmp_path / "plan.safetensors", tmp_path / "full", "--out", tmp_path / "small").status == 0
    expected = plan.apply_(model).state_dict()
    found = stored(tmp_path / "small")
    assert ("lm_head.weight" in found) != tied
    assert_equal(found, {name: expected[name] for name in found})
    assert len(found) == len(expected) - tied


def test_checkpoint_of_another_model_is_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file({"0.weight": torch.zeros(9, 6)}, tmp_path / "full.safetensors")
    words = ["apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small"]
    result = run(*words)
    assert (result.status, result.out) == (1, "")
    assert "'0.weight' is not as it was when the plan was made" in result.err
    assert "planned: (8, 6)    found: (9, 6)" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.safetensors", "plan.safetensors"]


def test_plan_applies_once(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    assert (
        run("apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "a").status == 0
    )
    again = run("apply", tmp_path / "plan.safetensors", tmp_path / "a", "--out", tmp_path / "b")
    assert again.status == 1
    assert "plans apply once" in again.err


@pytest.mark.parametrize("kind", ["plan", "model", "compressed"])
def test_files_of_other_kinds_are_explained(kind: str, run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    plan, file = tmp_path / "plan.safetensors", tmp_path / "full.safetensors"
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(plan)
    if kind == "compressed":
        secateur.compress(model, torch.randn(1, 6)).save(file)
    else:
        secateur.save(model, file)
    result = run("apply", file if kind == "plan" else plan, file, "--out", tmp_path / "small")
    assert result.status == 1
    told = {
        "plan": "is not a file of the kind",
        "model": "plan.apply_(model)",
        "compressed": "secateur.load_compressed",
    }
    assert told[kind] in result.err
    assert not (tmp_path / "small").exists()


def test_module_of_the_model_is_never_imported(run: Run, folder: Path) -> None:
    run("shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--out", "small")
    safetensors.torch.save_file(sys.modules.pop("my_models").mlp().state_dict(), "full.safetensors")
    assert run("apply", "small/plan.safetensors", "full.safetensors", "--out", "cut").status == 0
    assert "my_models" not in sys.modules
    assert {name: tuple(t.shape) for name, t in stored(folder / "cut").items()}["2.weight"] == (8, 8)
    ShrinkPlan.load("small/plan.safetensors")
