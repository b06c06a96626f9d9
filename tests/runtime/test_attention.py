"""An attention whose projections are layers of their own is nn.MultiheadAttention, whatever it is called with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import UnsupportedError
from secateur.graph.heads import free_heads_
from secateur.runtime.attention import OpenAttention, can_be_opened, open_attention_
from tests.graph.test_heads import BATCH, EMBED, HEADS, MASKS, PADDING, SOURCE, agree, attention, inputs

JOINT = pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])


def opened(module: nn.MultiheadAttention, *, joint: bool) -> nn.MultiheadAttention:
    twin = copy.deepcopy(module)
    open_attention_(twin, joint=joint)
    assert type(twin) is OpenAttention
    return twin.eval()


def layers(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_children() if isinstance(child, nn.Linear)]


@JOINT
@pytest.mark.parametrize("need_weights", ["none", "mean", "each"])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_open_attention_equals_torch_for_all_masks(
    batch_first: bool, mask: str, padding: str, need_weights: str, joint: bool
) -> None:
    module = attention(batch_first=batch_first).eval()
    pad, own = PADDING[padding], MASKS[mask]
    if pad is not None and own is not None and pad.dtype != own.dtype:
        pad = pad.bool() if own.dtype == torch.bool else torch.zeros_like(pad, dtype=torch.float64)
    given: dict[str, Any] = {
        "attn_mask": own,
        "key_padding_mask": pad,
        "need_weights": need_weights != "none",
        "average_attn_weights": need_weights == "mean",
    }
    x = inputs(module)
    agree(module(*x, **given), opened(module, joint=joint)(*x, **given))


WIDTHS: list[dict[str, Any]] = [
    {}, {"bias": False}, {"kdim": 6, "vdim": 7}, {"kdim": 6, "vdim": 7, "bias": False}, {"vdim": 3},
]  # fmt: skip


@JOINT
@pytest.mark.parametrize("kwargs", WIDTHS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_open_attention_equals_torch_for_all_widths_and_without_batch(
    kwargs: dict[str, Any], batched: bool, need_weights: bool, joint: bool
) -> None:
    module = attention(**kwargs).eval()
    x = inputs(module, batched=batched)
    agree(module(*x, need_weights=need_weights), opened(module, joint=joint)(*x, need_weights=need_weights))


@JOINT
@pytest.mark.parametrize("same", ["all", "key and value", "query and key", "none"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_open_attention_equals_torch_whichever_tensors_are_one(
    same: str, batch_first: bool, batched: bool, joint: bool
) -> None:
    module = attention(batch_first=batch_first).eval()
    shape = (BATCH, SOURCE, EMBED) if batched else (SOURCE, EMBED)
    a, b, c = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    query, key, value = {"all": (a, a, a), "key and value": (a, b, b), "query and key": (a, a, b), "none": (a, b, c)}[
        same
    ]
    agree(module(query, key, value), opened(module, joint=joint)(query, key, value))
    agree(module(query=query, key=key, value=value), opened(module, joint=joint)(value=value, key=key, query=query))


@JOINT
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
def test_open_attention_equals_torch_when_causal(need_weights: bool, padded: bool, joint: bool) -> None:
    module = attention(batch_first=True).eval()
    x = torch.randn(BATCH, SOURCE, EMBED, dtype=torch.float64)
    mask = torch.triu(torch.ones(SOURCE, SOURCE, dtype=torch.bool), 1)
    padding = PADDING["bool"] if padded else None
    given: dict[str, Any] = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    agree(module(x, x, x, padding, **given), opened(module, joint=joint)(x, x, x, padding, **given))
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        opened(module, joint=joint)(x, x, x, is_causal=True)


@JOINT
def test_self_attention_asks_each_layer_once(joint: bool) -> None:
    module = opened(attention(batch_first=True), joint=joint)
    asked: list[str] = []
    for name in layers(module):
        module.get_submodule(name).register_forward_hook(lambda *_, name=name: asked.append(name))
    x = torch.randn(BATCH, SOURCE, EMBED, dtype=torch.float64)
    module(x, x, x)
    assert asked == (["in_proj", "out_proj"] if joint else ["q_proj", "k_proj", "v_proj", "out_proj"])


@JOINT
@pytest.mark.parametrize("kwargs", WIDTHS, ids=str)
def test_tensors_are_found_under_the_names_that_torch_gives_them(kwargs: dict[str, Any], joint: bool) -> None:
    module = attention(**kwargs)
    twin = opened(module, joint=joint)
    assert isinstance(twin, OpenAttention)
    for name, tensor in module.named_parameters():
        if not name.startswith("out_proj"):
            found = twin.tensor_of_closed(name)
            assert found is not None
            assert torch.equal(found, tensor)
    assert torch.equal(twin.out_proj.weight, module.out_proj.weight)


@pytest.mark.parametrize("kwargs", WIDTHS, ids=str)
def test_projections_of_other_widths_stay_apart(kwargs: dict[str, Any]) -> None:
    is_one = "vdim" not in kwargs
    assert ("in_proj" in layers(opened(attention(**kwargs), joint=True))) == is_one


@JOINT
def test_opened_attention_has_values_of_its_own_and_no_gradients(joint: bool) -> None:
    module = attention()
    twin = copy.deepcopy(module)
    given = {parameter.data_ptr() for parameter in (twin.in_proj_weight, twin.in_proj_bias)}
    open_attention_(twin, joint=joint)
    made = {name: p for name, p in twin.named_parameters() if not name.startswith("out_proj")}
    assert len(made) == (2 if joint else 6)
    assert not given & {parameter.data_ptr() for parameter in made.values()}
    assert not any(parameter.requires_grad for parameter in made.values())
    assert all(parameter.dtype == torch.float64 for parameter in made.values())


@JOINT
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_that_has_lost_heads_can_be_opened(need_weights: bool, joint: bool) -> None:
    module = attention(batch_first=True).eval()
    free_heads_(module)
    keep = [i for part in range(3) for i in range(part * EMBED, part * EMBED + EMBED // HEADS)]
    module.in_proj_weight = nn.Parameter(module.in_proj_weight[keep].detach())
    module.in_proj_bias = nn.Parameter(module.in_proj_bias[keep].detach())
    module.out_proj.weight = nn.Parameter(module.out_proj.weight[:, : EMBED // HEADS].detach())
    module.num_heads = 1
    assert can_be_opened(module)
    x = inputs(module)
    twin = opened(module, joint=joint)
    agree(module(*x, need_weights=need_weights), twin(*x, need_weights=need_weights))
    assert twin.scale == module.scale


@pytest.mark.parametrize("kwargs", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_attention_with_extra_positions_stays_closed(kwargs: dict[str, bool]) -> None:
    module = attention(**kwargs)
    assert not can_be_opened(module)
    with pytest.raises(UnsupportedError, match="add_bias_kv or add_zero_attn"):
        open_attention_(module, joint=True)
    assert type(module) is nn.MultiheadAttention
    assert module.in_proj_weight is not None


def test_subclass_and_other_modules_stay_closed() -> None:
    class Own(nn.MultiheadAttention):
        pass

    assert not can_be_opened(Own(EMBED, HEADS))
    assert not can_be_opened(nn.Linear(2, 2))
    assert not can_be_opened(opened(attention(), joint=True))


@JOINT
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_encoder_layer_equals_torch_on_both_of_its_paths(norm_first: bool, grad: bool, joint: bool) -> None:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 16, batch_first=True, norm_first=norm_first, dtype=torch.float64)
    layer = layer.eval()
    twin = copy.deepcopy(layer)
    open_attention_(twin.self_attn, joint=joint)
    x: Tensor = torch.randn(BATCH, SOURCE, EMBED, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        for padding in (None, torch.tensor([[False] * 3 + [True] * 2, [False] * 5])):
            expected, found = layer(x, src_key_padding_mask=padding), twin(x, src_key_padding_mask=padding)
            kept = slice(None) if padding is None else ~padding
            torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-12)
