"""Smaller models of transformers in folders, back by `from_pretrained` or by `load_`, with the same bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import nn

from secateur import InvalidInputError, Masks, load_, plan_shrink, prune_
from secateur.shrink import save_pretrained
from secateur.shrink.hub import write_folder
from tests.shrink.pretrained import MODELS, cut_, inputs_of, logits, model_of, pretrained


def sizes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("name", MODELS)
def test_after_a_uniform_shrink_from_pretrained_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name)
    cut_(model, inputs)
    own = model.config
    assert save_pretrained(model, tmp_path / "small", inputs)
    assert model.config is own
    again = pretrained(type(model), tmp_path / "small")
    assert sizes(again) == sizes(model)
    assert torch.equal(logits(again, inputs), logits(model, inputs))
    base = pretrained(transformers.AutoModel, tmp_path / "small")
    with torch.no_grad():
        expected = model.base_model(inputs).last_hidden_state
        assert torch.equal(base(inputs).last_hidden_state, expected)


@pytest.mark.parametrize("config", ["before", "after"])
@pytest.mark.parametrize("whole", [("head dims",), ()], ids=["uniform", "narrower heads"])
@pytest.mark.parametrize("name", MODELS)
def test_load_gives_the_same_bits_to_a_model_of_either_config(
    name: str, whole: tuple[str, ...], config: str, tmp_path: Path
) -> None:
    model, inputs = model_of(name), inputs_of(name)
    cut_(model, inputs, whole=whole)
    assert save_pretrained(model, tmp_path / "small", inputs) is bool(whole)
    fresh = (
        model_of(name) if config == "before" else type(model)(type(model.config).from_pretrained(tmp_path / "small"))
    )
    identities = [id(p) for p in fresh.parameters()]
    assert load_(fresh, tmp_path / "small") is fresh
    assert [id(p) for p in fresh.parameters()] == identities
    assert sizes(fresh) == sizes(model)
    assert torch.equal(logits(fresh.eval(), inputs), logits(model, inputs))


@pytest.mark.parametrize("name", MODELS)
def test_what_no_config_describes_is_refused_by_from_pretrained(name: str, tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name)
    cut_(model, inputs, whole=())
    assert not save_pretrained(model, tmp_path / "small", inputs)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path / "small")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_dtype_that_came_from_a_folder_goes_back_to_one(dtype: torch.dtype, tmp_path: Path) -> None:
    model_of("LlamaForCausalLM").to(dtype).save_pretrained(tmp_path / "full")
    model, inputs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "full").eval(), inputs_of("Llama")
    model.config.use_cache = False
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    cut_(model, inputs)
    assert save_pretrained(model, tmp_path / "small", inputs)
    again = pretrained(type(model), tmp_path / "small")
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert torch.equal(logits(again, inputs), logits(copy.deepcopy(model), inputs))


@pytest.mark.parametrize("whole", [("head dims",), ()], ids=["uniform", "narrower heads"])
@pytest.mark.parametrize("name", ["ViTForImageClassification", "LlamaForCausalLM"])
def test_masks_go_along(name: str, whole: tuple[str, ...], tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name)
    prune_(model, sparsity=0.7)
    cut_(model, inputs, whole=whole)
    next(model.parameters()).data.add_(1.0)  # between two steps, which the next one would undo
    assert save_pretrained(model, tmp_path / "small", inputs) is bool(whole)
    fresh = load_(model_of(name), tmp_path / "small")
    assert Masks(fresh) == Masks(model)
    assert Masks(fresh).num_zeros() > 0
    without = load_(model_of(name), tmp_path / "small", masks=False)
    assert len(Masks(without)) == 0
    parameters = dict(without.named_parameters())
    assert not any(parameters[name][~mask].any() for name, mask in Masks(model).items())


def test_sharded_folder_is_read_shard_by_shard_into_a_smaller_model(tmp_path: Path) -> None:
    model, inputs = cut_(model_of("BertForSequenceClassification"), inputs_of("Bert")), inputs_of("Bert")
    assert save_pretrained(model, tmp_path / "whole", inputs)
    again = type(model).from_pretrained(tmp_path / "whole")
    again.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 2
    fresh = load_(model_of("BertForSequenceClassification"), tmp_path / "shards")
    assert torch.equal(logits(fresh, inputs), logits(model, inputs))


def test_a_size_that_the_config_of_before_does_not_say_is_loaded_too(tmp_path: Path) -> None:
    model, inputs = model_of("GPT2LMHeadModel"), inputs_of("GPT2")
    wide = {f"transformer.h.{layer}.mlp.c_fc.weight[1]": 0.25 for layer in range(2)}
    plan_shrink(model, inputs, sparsity=0.0, overrides=wide).apply_(model)
    assert save_pretrained(model, tmp_path / "small", inputs)
    fresh = load_(model_of("GPT2LMHeadModel"), tmp_path / "small")
    assert torch.equal(logits(fresh, inputs), logits(model, inputs))


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"Linear is no model of transformers(?s:.*)secateur\.save"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "small", torch.ones(1, 2))
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_there_stays_unless_forced(tmp_path: Path) -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"is there already(?s:.*)fix:   force=True \(--force"):
        save_pretrained(model, tmp_path, inputs)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert save_pretrained(model, tmp_path, inputs, force=True)
    assert torch.equal(logits(pretrained(type(model), tmp_path), inputs), logits(model, inputs))


@pytest.mark.parametrize("whole", [("head dims",), ()], ids=["uniform", "narrower heads"])
def test_an_interrupted_write_leaves_nothing(
    whole: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = cut_(model_of("GPT2LMHeadModel"), inputs_of("GPT2"), whole=whole), inputs_of("GPT2")
    own = model.config

    def interrupted(tensors: object, path: Path, *_: object, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.torch, "save_file", interrupted)
    monkeypatch.setattr(transformers.modeling_utils, "safe_save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_pretrained(model, tmp_path / "small", inputs)
    assert not any(tmp_path.iterdir())
    assert model.config is own


def test_a_config_that_the_model_s_code_computes_with_may_be_given(tmp_path: Path) -> None:
    model, inputs = model_of("BertForSequenceClassification"), inputs_of("Bert")
    before: Any = type(model.config)(**model.config.to_dict())
    cut_(model, inputs)
    model.config.intermediate_size = 3  # as if it had followed by halves
    with pytest.raises(InvalidInputError, match="is not that of"):
        save_pretrained(model, tmp_path / "small", inputs)
    assert save_pretrained(model, tmp_path / "small", inputs, config=before)
    assert before.hidden_size == 32


def test_a_shrink_whose_config_transformers_would_not_write_has_that_of_before(tmp_path: Path) -> None:
    name = "LlamaForCausalLM"
    own = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
    model, inputs = model_of(name, **own), inputs_of(name)
    cut_(model, inputs, whole=("head dims", "heads"), sparsity=0.34)
    assert not save_pretrained(model, tmp_path / "small", inputs)
    again = load_(model_of(name, **own), tmp_path / "small")
    assert torch.equal(logits(again, inputs), logits(model, inputs))


@pytest.mark.parametrize("whole", [("head dims",), ()], ids=["uniform", "narrower heads"])
def test_a_model_that_is_pruned_after_a_shrink_is_written_as_it_was(whole: tuple[str, ...], tmp_path: Path) -> None:
    name = "BertForSequenceClassification"
    model, inputs = model_of(name), inputs_of(name)
    cut_(model, inputs, whole=whole)
    is_known = save_pretrained(model, tmp_path / "small", inputs)
    again = pretrained(type(model), tmp_path / "small") if is_known else load_(model_of(name), tmp_path / "small")
    masks = prune_(again, sparsity=0.5)
    (tmp_path / "sparse").mkdir()
    assert write_folder(again, tmp_path / "sparse") is is_known
    found = load_(model_of(name), tmp_path / "sparse")
    assert torch.equal(logits(found, inputs), logits(again, inputs))
    assert Masks(found) == masks


@pytest.mark.parametrize("before", ["masks", "shards"])
def test_nothing_is_left_of_what_was_saved_in_the_folder_before(before: str, tmp_path: Path) -> None:
    name, folder = next(iter(MODELS)), tmp_path / "model"
    old, inputs = model_of(name), inputs_of(name)
    if before == "masks":
        prune_(old, sparsity=0.9)
        save_pretrained(old, folder, inputs)
    else:
        old.save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").exists()
    (folder / "notes.txt").write_text("mine")
    model = model_of(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    save_pretrained(model, folder, inputs, force=True)
    again = load_(model_of(name), folder)
    assert torch.equal(logits(again, inputs), logits(model, inputs))
    assert not Masks(again)
    assert sorted(file.name for file in folder.glob("*.safetensors*")) == ["model.safetensors"]
    assert (folder / "notes.txt").read_text() == "mine"
