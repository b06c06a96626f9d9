"""Attention with free heads is nn.MultiheadAttention, whatever it is called with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import UnsupportedError, transaction
from secateur.graph.heads import FreeHeadsAttention, can_be_freed, free_heads, free_heads_

EMBED, HEADS, TARGET, SOURCE, BATCH = 8, 2, 3, 5, 2


def attention(**kwargs: Any) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **kwargs)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def freed(module: nn.MultiheadAttention) -> nn.MultiheadAttention:
    twin = copy.deepcopy(module)
    free_heads_(twin)
    assert type(twin) is FreeHeadsAttention
    return twin


def inputs(module: nn.MultiheadAttention, *, batched: bool = True) -> list[Tensor]:
    sizes = [(TARGET, module.embed_dim), (SOURCE, module.kdim), (SOURCE, module.vdim)]
    if not batched:
        return [torch.randn(n, width, dtype=torch.float64) for n, width in sizes]
    shapes = [(BATCH, n, w) if module.batch_first else (n, BATCH, w) for n, w in sizes]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def agree(one: tuple[Tensor, Tensor | None], other: tuple[Tensor, Tensor | None]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-13)
    assert (one[1] is None) == (other[1] is None)
    if one[1] is not None:
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=1e-13)


MASKS: dict[str, Tensor | None] = {
    "none": None,
    "bool 2-D": torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]], dtype=torch.bool),
    "float 2-D": torch.linspace(-1, 1, TARGET * SOURCE, dtype=torch.float64).view(TARGET, SOURCE),
    "bool 3-D": torch.arange(BATCH * HEADS * TARGET * SOURCE).view(BATCH * HEADS, TARGET, SOURCE) % 4 == 1,
    "float 3-D": torch.linspace(-2, 1, BATCH * HEADS * TARGET * SOURCE, dtype=torch.float64).view(-1, TARGET, SOURCE),
}
PADDING: dict[str, Tensor | None] = {
    "none": None,
    "bool": torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]], dtype=torch.bool),
    "float": torch.tensor([[0, 0.5, 0, -1, 1], [0, 0, 1, 0, 0]], dtype=torch.float64),
}


@pytest.mark.parametrize("need_weights", ["none", "mean", "each"])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_free_heads_equal_torch_for_all_masks(batch_first: bool, mask: str, padding: str, need_weights: str) -> None:
    module = attention(batch_first=batch_first).eval()
    twin = freed(module)
    pad = PADDING[padding]
    if pad is not None and MASKS[mask] is not None and pad.dtype != MASKS[mask].dtype:
        pad = pad.bool() if MASKS[mask].dtype == torch.bool else torch.zeros_like(pad, dtype=torch.float64)
    given: dict[str, Any] = {
        "attn_mask": MASKS[mask],
        "key_padding_mask": pad,
        "need_weights": need_weights != "none",
        "average_attn_weights": need_weights == "mean",
    }
    x = inputs(module)
    agree(module(*x, **given), twin(*x, **given))


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"bias": False}, {"kdim": 6, "vdim": 7}, {"kdim": 6, "vdim": 7, "bias": False}, {"vdim": 3}],
    ids=str,
)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_free_heads_equal_torch_for_all_widths_and_without_batch(
    kwargs: dict[str, Any], batched: bool, need_weights: bool
) -> None:
    module = attention(**kwargs)
    x = inputs(module, batched=batched)
    agree(module(*x, need_weights=need_weights), freed(module)(*x, need_weights=need_weights))


@pytest.mark.parametrize("need_weights", [True, False])
def test_free_heads_equal_torch_without_batch_with_masks(need_weights: bool) -> None:
    module = attention()
    x = inputs(module, batched=False)
    given = {"attn_mask": MASKS["bool 2-D"], "key_padding_mask": PADDING["bool"][0], "need_weights": need_weights}
    agree(module(*x, **given), freed(module)(*x, **given))
    given["attn_mask"] = MASKS["bool 3-D"][:HEADS]
    agree(module(*x, **given), freed(module)(*x, **given))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
def test_free_heads_equal_torch_when_causal(need_weights: bool, padded: bool) -> None:
    module = attention(batch_first=True)
    x = torch.randn(BATCH, SOURCE, EMBED, dtype=torch.float64)
    mask = torch.triu(torch.ones(SOURCE, SOURCE, dtype=torch.bool), 1)
    given: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": True,
        "need_weights": need_weights,
        "key_padding_mask": PADDING["bool"] if padded else None,
    }
    agree(module(x, x, x, **given), freed(module)(x, x, x, **given))


def test_free_heads_refuse_causal_without_a_mask_as_torch_does() -> None:
    module = attention()
    twin = freed(module)
    x = inputs(module)
    for either in (module, twin):
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            either(*x, is_causal=True)


@pytest.mark.parametrize("need_weights", [True, False])
def test_free_heads_drop_the_same_entries_in_training_mode(need_weights: bool) -> None:
    module = attention(dropout=0.4).train()
    twin = freed(module)
    x = inputs(module)
    torch.manual_seed(3)
    expected = module(*x, need_weights=need_weights)
    torch.manual_seed(3)
    agree(expected, twin(*x, need_weights=need_weights))


def test_free_heads_give_the_same_gradients() -> None:
    module = attention(kdim=6, vdim=7)
    twin = freed(module)
    x = inputs(module)
    for either in (module, twin):
        either(*x, attn_mask=MASKS["float 2-D"])[0].square().sum().backward()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("number", [1, 2])
def test_encoder_with_free_heads_equals_torch_for_a_batch_that_it_nests(number: int) -> None:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    twin = copy.deepcopy(encoder)
    for part in twin.layers[:number]:
        free_heads_(part.self_attn)
    x, padding = (
        torch.randn(BATCH, SOURCE, EMBED, dtype=torch.float64),
        torch.arange(SOURCE) >= torch.tensor([[3], [5]]),
    )
    with torch.no_grad():
        expected, found = (each(x, src_key_padding_mask=padding) for each in (encoder, twin))
    assert expected[0, 3:].count_nonzero() == 0  # torch has nested the batch
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_freeing_keeps_identity_names_hooks_and_subclasses_are_left_alone() -> None:
    module = attention()
    parameters, names = list(module.parameters()), list(module.state_dict())
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    free_heads_(module)
    free_heads_(module)  # twice is once
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert list(module.state_dict()) == names
    assert isinstance(module, nn.MultiheadAttention)
    module(*inputs(module))
    assert calls == [1]

    class Own(nn.MultiheadAttention):
        pass

    assert not can_be_freed(Own(EMBED, HEADS))


@pytest.mark.parametrize("kwargs", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_freeing_is_refused_where_positions_are_added(kwargs: dict[str, bool]) -> None:
    module = attention(**kwargs)
    before = dict(vars(module))
    with pytest.raises(UnsupportedError, match="add_bias_kv or add_zero_attn"):
        free_heads_(module)
    assert type(module) is nn.MultiheadAttention
    assert vars(module) == before


@pytest.mark.parametrize("raises", [False, True])
def test_free_heads_context_leaves_modules_as_they_were(raises: bool) -> None:
    model = nn.ModuleList([attention(), attention(kdim=6), attention(add_zero_attn=True), nn.Linear(2, 2)])
    before = [(type(m), dict(vars(m))) for m in model.modules()]
    kinds = []
    try:
        with free_heads(model):
            kinds = [type(m) for m in model]
            if raises:
                raise KeyError
    except KeyError:
        pass
    assert kinds == [FreeHeadsAttention, FreeHeadsAttention, nn.MultiheadAttention, nn.Linear]
    assert [(type(m), dict(vars(m))) for m in model.modules()] == before


def test_a_freed_module_computes_with_fewer_heads_and_its_old_scale() -> None:
    module = attention(batch_first=True)
    free_heads_(module)
    x = inputs(module)
    weight, bias = module.in_proj_weight.detach(), module.in_proj_bias.detach()
    width = EMBED // HEADS
    q, k, v = (t @ weight[i * EMBED + width : (i + 1) * EMBED].T + bias[i * EMBED + width : (i + 1) * EMBED]
               for i, t in enumerate(x))  # fmt: skip
    heads = torch.softmax(q @ k.transpose(1, 2) / width**0.5, -1) @ v
    expected = heads @ module.out_proj.weight.detach()[:, width:].T + module.out_proj.bias.detach()
    rows = [i * EMBED + j for i in range(3) for j in range(width, EMBED)]
    with transaction(module) as surgery:
        surgery.resize("in_proj_weight", dim=0, keep=rows)
        surgery.resize("in_proj_bias", dim=0, keep=rows)
        surgery.resize("out_proj.weight", dim=1, keep=range(width, EMBED))
    module.num_heads = 1
    torch.testing.assert_close(module(*x)[0], expected, rtol=0, atol=1e-13)
    assert (module.embed_dim, module.out_proj.in_features, module.out_proj.out_features) == (EMBED, width, EMBED)
