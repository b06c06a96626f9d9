"""Configs of shrunk transformers: there is one if, and only if, it describes a model that computes the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from secateur import InvalidInputError, ShapeError, UnsupportedError, analyze, load_, plan_shrink
from secateur.shrink import configs
from secateur.shrink.configs import config_before, config_of
from tests.shrink.models import is_unchanged, state_of
from tests.shrink.pretrained import MODELS, cut_, inputs_of, logits, model_of


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparsity", [0.25, 0.5])
def test_uniform_shrink_has_a_config(sparsity: float, name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    before = copy.deepcopy(model.config)
    cut_(model, inputs, sparsity=sparsity)
    found = config_of(model, before, inputs)
    assert found is not None
    again = type(model)(found).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(logits(again, inputs), logits(model, inputs))


def test_what_the_config_does_not_say_is_said_where_it_has_to_be() -> None:
    model, inputs = model_of("GPT2LMHeadModel"), inputs_of("GPT2")
    before = copy.deepcopy(model.config)
    assert before.n_inner is None
    wide = {f"transformer.h.{layer}.mlp.c_fc.weight[1]": 0.25 for layer in range(2)}
    plan_shrink(model, inputs, sparsity=0.0, overrides=wide).apply_(model)
    found = config_of(model, before, inputs)
    assert (found.n_inner, found.n_embd, found.n_head) == (96, 32, 4)


def test_many_different_fractions_are_found() -> None:
    model, inputs = model_of("LlamaForCausalLM"), inputs_of("Llama")
    before = copy.deepcopy(model.config)
    coupling = analyze(model, inputs)
    lost = {"model.embed_tokens.weight[1]": 8 / 32, "mlp": 8 / 48, "kv groups": 0.5}
    overrides = {
        number: next(
            (share for key, share in lost.items() if key in (group.kind, group.name) or key in group.name), 0.0
        )
        for number, group in enumerate(coupling.groups)
    }
    plan_shrink(model, inputs, sparsity=0.0, overrides=overrides, coupling=coupling).apply_(model)
    found = config_of(model, before, inputs)
    assert (found.hidden_size, found.intermediate_size, found.num_key_value_heads) == (24, 40, 2)
    assert (found.num_attention_heads, found.head_dim, found.num_hidden_layers) == (4, 8, 2)


@pytest.mark.parametrize("name", MODELS)
def test_heads_that_became_narrower_have_none(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    before = copy.deepcopy(model.config)
    assert config_of(cut_(model, inputs, whole=()), before, inputs) is None


def test_layers_of_different_widths_have_none() -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    before = copy.deepcopy(model.config)
    wide = {"bert.encoder.layer.0.intermediate.dense.weight": 0.5}
    plan_shrink(model, inputs, sparsity=0.0, overrides=wide).apply_(model)
    assert config_of(model, before, inputs) is None


def test_of_configs_with_the_same_shapes_it_is_the_one_with_the_same_scale_even_where_heads_say_nothing() -> None:
    model, inputs = model_of("LlamaForCausalLM"), inputs_of("Llama")
    before = copy.deepcopy(model.config)
    cut_(model, inputs, whole=("head dims", "neurons"))
    for name, parameter in model.named_parameters():
        if "q_proj" in name:
            torch.nn.init.zeros_(parameter)  # attention is even then, however many heads there are
    found = config_of(model, before, inputs)
    assert (found.num_attention_heads, found.num_key_value_heads, found.head_dim) == (4, 2, 8)


def test_too_many_possible_sizes_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    before = copy.deepcopy(model.config)
    cut_(model, inputs)
    monkeypatch.setattr(configs, "_MOST_COMBINED", 1)
    monkeypatch.setattr(configs, "_computes_the_same", None)
    assert config_of(model, before, inputs) is None


def test_modes_of_modules_stay() -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    model.bert.encoder.train()
    modes = [module.training for module in model.modules()]
    assert config_of(model, model.config, inputs) is not None
    assert [module.training for module in model.modules()] == modes


def test_config_that_the_model_cannot_have_had_is_refused() -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    cut_(model, inputs, whole=("head dims", "neurons", "heads"))
    assert config_before(model, None).hidden_size == 32
    other = copy.deepcopy(model.config)
    other.hidden_size = 8
    with pytest.raises(InvalidInputError, match=r"is not that of BertForSequenceClassification before(?s:.*)deepcopy"):
        config_before(model, other)


# ---- loading into a model of the config of before


def folder_of(name: str, path: Any, **sizes: Any) -> Any:
    """A folder of transformers with a smaller model."""
    model = model_of(name, **sizes)
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "ViTForImageClassification"])
def test_numbers_follow_the_config_beside_the_weights(name: str, tmp_path: Any) -> None:
    smaller, inputs = folder_of(name, tmp_path, hidden_size=24, num_attention_heads=3), inputs_of(name)
    model = load_(model_of(name), tmp_path)
    assert torch.equal(logits(model, inputs), logits(smaller, inputs))
    attention = model.get_submodule(next(n for n, m in smaller.named_modules() if hasattr(m, "num_attention_heads")))
    assert (attention.num_attention_heads, model.config.hidden_size) == (3, 24)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "ViTForImageClassification"])
@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"hidden_size": 24, "num_attention_heads": 3, "hidden_act": "relu"}, "differ: hidden_act: relu for gelu"),
        ({"hidden_size": 24, "num_attention_heads": 4}, "changes more than sizes: scales of attention"),
    ],
)
def test_config_that_says_more_than_sizes_is_refused(
    sizes: dict[str, Any], told: str, name: str, tmp_path: Any
) -> None:
    folder_of(name, tmp_path, **sizes)
    model = model_of(name)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match=rf"{told}(?s:.*)make the model from the config in the folder"):
        load_(model, tmp_path)
    assert is_unchanged(model, before)


def test_weights_of_the_model_s_own_sizes_need_no_config(tmp_path: Any) -> None:
    other = folder_of("BertForSequenceClassification", tmp_path, hidden_act="relu")
    model = load_(model_of("BertForSequenceClassification"), tmp_path)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert model.config.hidden_act == "gelu"


def test_a_config_that_transformers_would_not_write_is_none() -> None:
    name = "LlamaForCausalLM"
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
    model, inputs = model_of(name, **sizes), inputs_of(name)
    before = copy.deepcopy(model.config)
    cut_(model, inputs, whole=("head dims", "heads"), sparsity=0.34)
    assert model.model.embed_tokens.weight.shape[1] == 63  # no multiple of 6, which Llama itself would not mind
    assert config_of(model, before, inputs) is None


def test_config_of_other_weights_is_refused(tmp_path: Any) -> None:
    folder_of("BertForSequenceClassification", tmp_path, hidden_size=24, num_attention_heads=3)
    model_of("BertForSequenceClassification").config.save_pretrained(tmp_path)
    with pytest.raises(ShapeError, match=r"do not fit the config beside them(?s:.*)save_pretrained or secateur\.save"):
        load_(model_of("BertForSequenceClassification"), tmp_path)
