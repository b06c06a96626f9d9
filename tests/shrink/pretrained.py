"""Small models of transformers, and cuts of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers

import secateur

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "BertForSequenceClassification": (
        transformers.BertConfig,
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
        | {"vocab_size": 60, "max_position_embeddings": 32},
    ),
    "GPT2LMHeadModel": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 60, "n_positions": 32}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "OPTForCausalLM": (
        transformers.OPTConfig,
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 64, "vocab_size": 60}
        | {"word_embed_proj_dim": 32, "max_position_embeddings": 32},
    ),
    "ViTForImageClassification": (
        transformers.ViTConfig,
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
        | {"image_size": 32, "patch_size": 8},
    ),
    "LlamaForCausalLM": (
        transformers.LlamaConfig,
        {"hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "num_hidden_layers": 2}
        | {"intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 32, "tie_word_embeddings": True},
    ),
}
"""Class -> config and sizes. Names of the ViT's weights in files are not those of the model; Llama's head is tied."""


def model_of(name: str, **sizes: Any) -> Any:
    """A small model of transformers, in evaluation mode."""
    kind, own = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, name)(kind(**own | sizes, use_cache=False)).eval()


def inputs_of(name: str) -> torch.Tensor:
    """An input for it."""
    torch.manual_seed(0)
    return torch.randn(1, 3, 32, 32) if name.startswith("ViT") else torch.randint(60, (1, 12))


def cut_(model: Any, inputs: torch.Tensor, *, whole: tuple[str, ...] = ("head dims",), sparsity: float = 0.5) -> Any:
    """Remove a fraction of the units of all kinds but some; all layers lose the same."""
    coupling = secateur.analyze(model, inputs)
    kept = {number: 0.0 for number, group in enumerate(coupling.groups) if group.kind in whole}
    plan = secateur.plan_shrink(model, inputs, sparsity=sparsity, overrides=kept, coupling=coupling)
    plan.apply_(model)
    return model


def pretrained(kind: Any, folder: Path) -> Any:
    """What a class of transformers reads; in memory as torch allocates it, which decides on the last bits of sums."""
    return copy.deepcopy(kind.from_pretrained(folder)).eval()


def logits(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """What it computes."""
    with torch.no_grad():
        return model(inputs).logits
