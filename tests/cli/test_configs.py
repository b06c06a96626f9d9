"""Configs of shrunk transformers: there is one if, and only if, it describes a model that computes the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import secateur
from secateur.cli import configs
from secateur.cli.configs import save_with_config

MODELS: dict[str, tuple[Any, dict[str, int]]] = {
    "BertForSequenceClassification": (
        transformers.BertConfig,
        {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "vocab_size": 60,
        },
    ),
    "GPT2LMHeadModel": (transformers.GPT2Config, {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 60}),
    "OPTForCausalLM": (
        transformers.OPTConfig,
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 64, "vocab_size": 60}
        | {"word_embed_proj_dim": 32},
    ),
    "ViTForImageClassification": (
        transformers.ViTConfig,
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
        | {"image_size": 32, "patch_size": 8},
    ),
}


def model_of(name: str) -> Any:
    """A small model of transformers."""
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    config = kind(**sizes)
    config.use_cache = False
    return getattr(transformers, name)(config).eval()


def inputs_of(name: str) -> torch.Tensor:
    """An input for it."""
    torch.manual_seed(0)
    return torch.randn(1, 3, 32, 32) if name.startswith("ViT") else torch.randint(60, (1, 12))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparsity", [0.25, 0.5])
def test_uniform_shrink_has_a_config(sparsity: float, name: str, tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name)
    coupling = secateur.analyze(model, inputs)
    whole = {number: 0.0 for number, group in enumerate(coupling.groups) if group.kind == "head dims"}
    plan = secateur.plan_shrink(model, inputs, sparsity=sparsity, overrides=whole, coupling=coupling)
    config = copy.deepcopy(model.config)
    plan.apply_(model)
    assert save_with_config(model, config, plan, inputs, tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    with torch.no_grad():
        torch.testing.assert_close(again(inputs).logits, model(inputs).logits)


@pytest.mark.parametrize("name", MODELS)
def test_heads_that_became_narrower_have_none(name: str, tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name)
    config = copy.deepcopy(model.config)
    plan = secateur.plan_shrink(model, inputs, sparsity=0.5)
    plan.apply_(model)
    assert not save_with_config(model, config, plan, inputs, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_layers_of_different_widths_have_none(tmp_path: Path) -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    config = copy.deepcopy(model.config)
    plan = secateur.plan_shrink(
        model, inputs, sparsity=0.0, overrides={"bert.encoder.layer.0.intermediate.dense.weight": 0.5}
    )
    plan.apply_(model)
    assert not save_with_config(model, config, plan, inputs, tmp_path)


def test_too_many_possible_sizes_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    config = copy.deepcopy(model.config)
    plan = secateur.plan_shrink(model, inputs, sparsity=0.5)
    plan.apply_(model)
    monkeypatch.setattr(configs, "_MOST_COMBINED", 1)
    monkeypatch.setattr(configs, "_shapes_of", None)
    assert not save_with_config(model, config, plan, inputs, tmp_path)
