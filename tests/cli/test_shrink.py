"""``secateur shrink``: a folder from which the smaller model comes back."""

from __future__ import annotations

import json
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import torchvision
from transformers import LlamaForCausalLM

import secateur
from secateur import ShrinkPlan
from secateur.cli.models import load_model, model_name
from secateur.cli.shrink import SCORES
from tests.cli.conftest import Run, llama
from tests.report.pages import parsed


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """What a language model says."""
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


def test_convolutional_net_comes_back_from_its_folder(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "small"
    words = ["shrink", "torchvision:resnet18", "--input", "1x3x64x64", "--macs", "0.5", "--seed", 3, "--verify"]
    found = run(*words, "--out", out, "--json").data
    assert found["files"] == ["model.safetensors", "plan.safetensors", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == found["files"]
    assert 0.45 * found["macs"]["before"] < found["macs"]["after"] <= 0.5 * found["macs"]["before"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        dense = torchvision.models.resnet18(weights=None).eval()
    small = secateur.load_(torchvision.models.resnet18(weights=None).eval(), out / "model.safetensors")
    assert sum(p.numel() for p in small.parameters()) == found["parameters"]["after"]
    images = torch.randn(2, 3, 64, 64)
    plan = ShrinkPlan.load(out / "plan.safetensors")
    assert plan.verify(dense, images).is_right
    with torch.no_grad():
        assert torch.equal(plan.apply_(dense)(images), small(images))
    assert "torchvision:resnet18" in (out / "report.html").read_text()


def test_vision_transformer_shrinks_by_the_command_as_by_the_function(run: Run, tmp_path: Path) -> None:
    name, arguments = "timm:vit_tiny_patch16_224", {"img_size": 32, "num_classes": 5}
    words = ["--arg", "img_size=32", "--arg", "num_classes=5", "--input", "1x3x32x32", "--params", "0.6"]
    run("shrink", name, *words, "--score", "l1", "--round-to", "8", "--out", tmp_path / "small")
    model = load_model(model_name(name), arguments, checkpoint=None, seed=0)
    expected = secateur.plan_shrink(
        model, torch.randn(1, 3, 32, 32), budget=secateur.Budget(params=0.6), score=secateur.shrink.l1, round_to=8
    )
    assert ShrinkPlan.load(tmp_path / "small" / "plan.safetensors") == expected


def test_uniformly_smaller_language_model_loads_with_from_pretrained(
    run: Run, llama_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    words = ["--input", "ids:1x16", "--sparsity", "0.5", "--override", "model.layers.*.self_attn.q_proj.weight=0"]
    result = run("shrink", f"hf:{llama_folder}", *words, "--out", out)
    assert result.status == 0
    assert "from_pretrained loads it" in result.out
    config = json.loads((out / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]) == (16, 24, 8)
    assert config["use_cache"] is True
    small = LlamaForCausalLM.from_pretrained(out).eval()
    ids = torch.randint(50, (2, 9))
    expected = ShrinkPlan.load(out / "plan.safetensors").apply_(llama())
    torch.testing.assert_close(logits(small, ids), logits(expected, ids))
    assert small.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 12)


def test_heads_of_a_language_model_go_into_its_config(run: Run, llama_folder: Path, tmp_path: Path) -> None:
    words = ["--input", "ids:1x16", "--sparsity", "0.5", "--keep", "head dims"]
    found = run("shrink", f"hf:{llama_folder}", *words, "--out", tmp_path / "small")
    assert found.status == 0
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    again = run("analyze", f"hf:{tmp_path / 'small'}", "--input", "ids:1x16", "--json").data
    assert next(group["units"] for group in again["groups"] if group["kind"] == "kv groups") == 2


def test_unevenly_smaller_language_model_comes_back_by_load_(run: Run, llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    words = ["--input", "ids:1x16", "--params", "0.5", "--scope", "global"]
    result = run("shrink", f"hf:{llama_folder}", *words, "--out", out)
    assert "secateur.load_ loads it: no config describes it" in result.out
    assert (out / "config.json").read_bytes() == (llama_folder / "config.json").read_bytes()
    expected = ShrinkPlan.load(out / "plan.safetensors").apply_(llama())
    small = secateur.load_(llama(), out / "model.safetensors")
    ids = torch.randint(50, (2, 9))
    assert torch.equal(logits(small, ids), logits(expected, ids))
    costs = run("analyze", f"hf:{out}", "--input", "ids:1x16", "--json").data
    assert costs["parameters"] == sum(p.numel() for p in small.parameters())


@pytest.mark.parametrize("score", SCORES)
def test_every_score_is_that_of_the_library(score: str, run: Run, folder: Path) -> None:
    words = ["--input", "1x3x16x16", "--sparsity", "0.4", "--score", score, "--out", "small"]
    assert run("shrink", "my_models:cnn", *words).status == 0
    model = load_model(model_name("my_models:cnn"), {}, checkpoint=None, seed=0)
    expected = secateur.plan_shrink(
        model, torch.randn(1, 3, 16, 16), sparsity=0.4, score=secateur.shrink.UNIT_SCORES[score]
    )
    assert ShrinkPlan.load("small/plan.safetensors") == expected


def test_budget_of_time_is_measured_and_reported(run: Run, folder: Path) -> None:
    found = run(
        *(
            "shrink",
            "my_models:mlp",
            "--arg",
            "width=256",
            "--input",
            "64x8",
            "--latency",
            "0.7",
            "--out",
            "small",
            "--json",
        )
    ).data
    assert found["latency_seconds"]["after"] <= 0.7 * found["latency_seconds"]["before"]


def test_checkpoint_decides_on_the_units(run: Run, folder: Path) -> None:
    model = load_model(model_name("my_models:mlp"), {}, checkpoint=None, seed=7)
    torch.nn.init.zeros_(model[0].weight[:8])
    secateur.save(model, "in.safetensors")
    words = ["--input", "2x8", "--sparsity", "0.5", "--ignore", "4.weight", "--checkpoint", "in.safetensors"]
    assert run("shrink", "my_models:mlp", *words, "--out", "small").status == 0
    plan = ShrinkPlan.load("small/plan.safetensors")
    assert plan.keep["0.weight"][0].tolist() == list(range(8, 16))
    assert "4.weight" not in plan.keep


def test_kind_that_the_model_does_not_have_is_refused(run: Run, folder: Path) -> None:
    words = ["--input", "2x8", "--sparsity", "0.5", "--keep", "heads", "--out", "small"]
    result = run("shrink", "my_models:mlp", *words)
    assert result.status == 1
    assert "there are: neurons" in result.err


def test_nothing_to_go_by_is_an_error(run: Run, folder: Path) -> None:
    result = run("shrink", "my_models:mlp", "--input", "2x8", "--out", "small")
    assert result.status == 2
    assert "--macs 0.5, --params 0.5 or --sparsity 0.3" in result.err
    assert not (folder / "small").exists()


def facts(out: Path) -> dict[str, str]:
    """How a page says that it was made."""
    page = parsed((out / "report.html").read_text(encoding="utf-8"))
    data = json.loads(next(node for node in page.all("script") if node["id"] == "report-data").text)
    (section,) = [each for each in data["sections"] if each["title"] == "How it was made"]
    return dict(section["figures"][0]["rows"])


def test_report_says_how_it_was_made(run: Run, folder: Path) -> None:
    words = ["--arg", "width=24", "--input", "2x8", "--macs", "0.95", "--params", "0.9", "--seed", 7, "--verify"]
    more = ["--score", "l1", "--ignore", "0.*", "--override", "2.weight=0.25", "--round-to", "auto", "--min-units", 3]
    assert run("shrink", "my_models:mlp", *words, *more, "--out", "small").status == 0
    found = facts(folder / "small")
    assert date.fromisoformat(found.pop("date"))
    assert found.pop("versions").split(", ") == [f"{name} {version(name)}" for name in ("secateur", "torch")]
    assert found == {
        "model": "my_models:mlp width=24",
        "weights": "those that the factory gives, seed 7",
        "input": "2x8",
        "budget": "MACs at most 0.95, parameters at most 0.9 of what the full model has",
        "score": "l1",
        "scope": "per_group",
        "least units of a group": "3",
        "round to": "auto",
        "ignored": "0.*",
        "overrides": "2.weight=0.25",
        "compared with the full model": "yes",
    }


def test_report_says_where_the_weights_are_from(run: Run, folder: Path, llama_folder: Path) -> None:
    words = ["--sparsity", "0.5"]
    run("shrink", "torchvision:squeezenet1_1", "--input", "1x3x64x64", *words, "--out", "random")
    assert facts(folder / "random")["weights"] == "random: no --checkpoint, seed 0"
    assert "torchvision" in facts(folder / "random")["versions"]
    run("shrink", f"hf:{llama_folder}", "--input", "ids:1x16", *words, "--out", "small")
    assert facts(folder / "small")["weights"] == "those of the folder"
    assert facts(folder / "small")["input"] == "ids:1x16"
    secateur.save(load_model(model_name("my_models:mlp"), {}, checkpoint=None, seed=7), "in.safetensors")
    run("shrink", "my_models:mlp", "--input", "2x8", *words, "--checkpoint", "in.safetensors", "--out", "loaded")
    assert facts(folder / "loaded")["weights"] == "in.safetensors"
    assert facts(folder / "loaded")["sparsity of units"] == "0.5"


def test_comparison_that_was_asked_for_is_told(run: Run, folder: Path) -> None:
    words = ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--force", "--out", "small"]
    assert "verified" not in run(*words).out
    assert "verified: the smaller model gives what the full one does" in run(*words, "--verify").out
    assert [run(*words, *more, "--json").data["verified"] for more in ([], ["--verify"])] == [False, True]


def test_budget_that_cannot_be_met_writes_nothing(run: Run, folder: Path) -> None:
    result = run("shrink", "my_models:mlp", "--input", "2x8", "--macs", "0.001", "--out", "small")
    assert result.status == 1
    assert "the budget cannot be met" in result.err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["my_models.py"]


def test_folder_that_is_there_is_left_alone_unless_forced(run: Run, folder: Path) -> None:
    (folder / "small").mkdir()
    (folder / "small" / "plan.safetensors").write_text("mine")
    (folder / "small" / "notes").write_text("mine")
    words = ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--out", "small"]
    result = run(*words)
    assert result.status == 1
    assert "small is there already" in result.err
    assert "--force" in result.err
    assert (folder / "small" / "plan.safetensors").read_text() == "mine"
    assert run(*words, "--force").status == 0
    assert (folder / "small" / "notes").read_text() == "mine"
    ShrinkPlan.load(folder / "small" / "plan.safetensors")
