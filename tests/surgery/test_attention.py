"""nn.MultiheadAttention, against attention computed by hand with the kept heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import ShapeError, UnsupportedError, grow_, resize_, transaction
from secateur.surgery.attention import is_whole

EMBED, HEADS, WIDTH = 12, 4, 3
KEPT_HEADS = [1, 3]
ROWS = [head * WIDTH + i for head in KEPT_HEADS for i in range(WIDTH)]
RESIDUAL_IN, RESIDUAL_OUT = [0, 2, 4, 6, 8, 10], [1, 2, 3, 7, 8, 9]
"""Other positions of the input and of the output than of the heads, only as many."""


def thirds(rows: list[int]) -> list[int]:
    return [row + part * EMBED for part in range(3) for row in rows]


def fused_keeps(module: nn.MultiheadAttention) -> dict[tuple[str, int], list[int]]:
    keeps = {
        ("in_proj_weight", 0): thirds(ROWS),
        ("in_proj_weight", 1): RESIDUAL_IN,
        ("in_proj_bias", 0): thirds(ROWS),
        ("out_proj.weight", 0): RESIDUAL_OUT,
        ("out_proj.weight", 1): ROWS,
        ("out_proj.bias", 0): RESIDUAL_OUT,
        ("bias_k", 2): ROWS,
        ("bias_v", 2): ROWS,
    }
    return {key: keep for key, keep in keeps.items() if getattr_path(module, key[0]) is not None}


def getattr_path(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def by_hand(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """What the kept heads give at the kept outputs, from kept inputs; x is (batch, time, embed)."""
    weight, bias = module.in_proj_weight.detach(), module.in_proj_bias
    bias = torch.zeros(3 * EMBED) if bias is None else bias.detach()
    out = torch.zeros(*x.shape[:2], EMBED)
    for head in KEPT_HEADS:
        rows = torch.arange(head * WIDTH, (head + 1) * WIDTH)
        q, k, v = (
            x[..., RESIDUAL_IN] @ weight[rows + part * EMBED][:, RESIDUAL_IN].T + bias[rows + part * EMBED]
            for part in range(3)
        )
        if module.bias_k is not None:
            k = torch.cat([k, module.bias_k.detach()[0, :, rows].expand(len(x), 1, WIDTH)], 1)
            v = torch.cat([v, module.bias_v.detach()[0, :, rows].expand(len(x), 1, WIDTH)], 1)
        attended = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v
        out += attended @ module.out_proj.weight.detach()[:, rows].T
    out_bias = module.out_proj.bias
    return (out + (0 if out_bias is None else out_bias.detach()))[..., RESIDUAL_OUT]


def resize(module: nn.Module, keeps: dict[tuple[str, int], list[int]], **holders: object) -> None:
    with transaction(module, **holders) as t:
        for (name, dim), keep in keeps.items():
            t.resize(name, dim=dim, keep=keep)


def make(**options: Any) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(EMBED, HEADS, batch_first=True, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return module


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True}], ids=str)
def test_kept_heads_attend_as_before(options: dict[str, Any]) -> None:
    module = make(**options)
    x = torch.randn(2, 5, EMBED)
    expected = by_hand(module, x)
    identities = [id(p) for p in module.parameters()]
    resize(module, fused_keeps(module))
    found, _ = module(*[x[..., RESIDUAL_IN]] * 3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert [id(p) for p in module.parameters()] == identities
    recorded = (module.embed_dim, module.kdim, module.vdim, module.num_heads, module.head_dim)
    assert recorded == (6, 6, 6, 2, WIDTH)
    assert (module.out_proj.in_features, module.out_proj.out_features) == (6, 6)


def test_state_and_gradients_of_attention_follow() -> None:
    module = make()
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.randn(2, 5, EMBED)
    module(x, x, x)[0].square().mean().backward()
    optimizer.step()
    moments = optimizer.state[module.in_proj_weight]["exp_avg"].clone()
    resize(module, fused_keeps(module), optimizer=optimizer)
    expected = moments[thirds(ROWS)][:, RESIDUAL_IN]
    assert torch.equal(optimizer.state[module.in_proj_weight]["exp_avg"], expected)
    module(*[x[..., :6]] * 3)[0].square().mean().backward()
    optimizer.step()


def test_fast_path_of_a_transformer_layer_sees_the_new_sizes() -> None:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, dim_feedforward=8, batch_first=True, dropout=0.0).eval()
    keep = ROWS
    chosen = {(f"self_attn.{name}", dim): k for (name, dim), k in fused_keeps(layer.self_attn).items()}
    chosen[("self_attn.in_proj_weight", 1)] = keep
    chosen[("self_attn.out_proj.weight", 0)] = chosen[("self_attn.out_proj.bias", 0)] = keep
    for name in ("norm1", "norm2"):
        chosen |= {(f"{name}.weight", 0): keep, (f"{name}.bias", 0): keep}
    chosen |= {("linear1.weight", 1): keep, ("linear2.weight", 0): keep, ("linear2.bias", 0): keep}
    resize(layer, chosen)
    x = torch.randn(2, 5, 6)
    with torch.no_grad():
        fast = layer(x)
    torch.testing.assert_close(fast, layer(x), rtol=1e-5, atol=1e-5)


SPLIT = {"kdim": 5, "vdim": 7}


def test_attention_with_other_key_and_value_widths_keeps_whole_heads() -> None:
    module = make(**SPLIT)
    q, k, v = torch.randn(2, 5, EMBED), torch.randn(2, 4, 5), torch.randn(2, 4, 7)
    with torch.no_grad():
        module.q_proj_weight[:, [i for i in range(EMBED) if i not in RESIDUAL_IN]] = 0
        gone = [i for i in range(EMBED) if i not in ROWS]
        module.out_proj.weight[:, gone] = 0
    expected = module(q, k, v)[0][..., RESIDUAL_OUT]
    keeps = {(f"{part}_proj_weight", 0): ROWS for part in "qkv"}
    keeps |= {key: keep for key, keep in fused_keeps(make()).items() if key[0] != "in_proj_weight"}
    resize(module, keeps | {("q_proj_weight", 1): RESIDUAL_IN})
    torch.testing.assert_close(module(q[..., RESIDUAL_IN], k, v)[0], expected, rtol=1e-5, atol=1e-5)
    assert (module.embed_dim, module.kdim, module.vdim, module.num_heads) == (6, 5, 7, 2)


def test_key_and_value_widths_can_be_cut_alone() -> None:
    module = make(**SPLIT)
    with transaction(module) as t:
        t.resize("k_proj_weight", dim=1, keep=[0, 1])
        t.grow("v_proj_weight", dim=1, size=9)
    assert (module.embed_dim, module.kdim, module.vdim, module.num_heads) == (EMBED, 2, 9, HEADS)
    assert module(torch.randn(1, 3, EMBED), torch.randn(1, 4, 2), torch.randn(1, 4, 9))[0].shape == (1, 3, EMBED)


Change = Callable[[dict[tuple[str, int], list[int]]], object]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda k: k.pop(("in_proj_bias", 0)), "'in_proj_bias' of nn.MultiheadAttention would keep other positions"),
        (lambda k: k.pop(("in_proj_weight", 1)), "one width for its input, its heads together and its output"),
        (lambda k: k.pop(("out_proj.weight", 0)), "'out_proj'|one width"),
        (lambda k: k.update({("out_proj.weight", 1): [0, 1, 2, 3, 4, 5]}), "would keep other positions than"),
        (lambda k: k.update({("in_proj_weight", 0): list(range(18))}), "3 blocks of rows of 'in_proj_weight'"),
    ],
    ids=["bias", "input", "output", "other heads", "other thirds"],
)
def test_parts_of_attention_that_disagree_are_refused(spoil: Change, message: str) -> None:
    module = make()
    shapes = {name: p.shape for name, p in module.named_parameters()}
    keeps = fused_keeps(module)
    spoil(keeps)
    with pytest.raises(ShapeError, match=message):
        resize(module, keeps)
    assert {name: p.shape for name, p in module.named_parameters()} == shapes
    assert module.num_heads == HEADS


def test_parts_of_heads_are_refused() -> None:
    module = make()
    halves = [0, 1, 4, 5, 8, 9]
    keeps = {key: (thirds(halves) if "in_proj" in key[0] and key[1] == 0 else halves) for key in fused_keeps(module)}
    with pytest.raises(ShapeError, match="parts of heads would be kept"):
        resize(module, keeps)
    assert module.in_proj_weight.shape == (3 * EMBED, EMBED)


def test_attention_alone_tells_what_goes_together() -> None:
    module = make()
    with pytest.raises(ShapeError, match="cannot resize 'MultiheadAttention'") as caught:
        resize_(module, "in_proj_weight", dim=1, keep=RESIDUAL_IN)
    assert "fix:   resize the rows and columns of all projections and their biases in one transaction" in str(
        caught.value
    )
    assert module.in_proj_weight.shape == (3 * EMBED, EMBED)


def test_fused_heads_do_not_grow() -> None:
    module = make()
    with pytest.raises(UnsupportedError, match="inside each of its 3 blocks"):
        grow_(module, "in_proj_weight", dim=0, size=45)
    assert module.in_proj_weight.shape == (3 * EMBED, EMBED)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [([0, 1, 2], True), ([3, 4, 5, 9, 10, 11], True), ([0, 1], False), ([1, 2, 3], False), ([0, 1, 3], False)],
)
def test_heads_are_whole_when_each_run_starts_at_a_head(positions: list[int], expected: bool) -> None:
    assert is_whole(torch.tensor(positions), 3) is expected
