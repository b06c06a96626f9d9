"""A compressed model goes back to ordinary layers, which hold its very weights and compute what it does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from secateur import patterns, prune_, shrink_
from secateur.graph.heads import FreeHeadsAttention, free_heads_
from secateur.runtime import CONV_FORMATS, LINEAR_FORMATS, Compressed, compress, compressing, load_compressed
from secateur.runtime.chain import Chain
from secateur.runtime.formats import Geometry
from secateur.runtime.layers import SparseConv2d, SparseLayer, SparseLinear
from secateur.runtime.origins import Origin
from secateur.runtime.recipe import CHANNELS_LAST, Recipe
from tests.runtime.formats.references import CONV, LINEAR, masked
from tests.runtime.models import (
    ALWAYS,
    Residual,
    Tied,
    Translates,
    Uses,
    cnn,
    dense,
    encoder,
    everything,
    hide_native,
    left_alone,
    masks_for,
    mlp,
    outputs,
    pack_all,
    packed,
    tensors,
)


@pytest.fixture(autouse=True)
def _pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_all(monkeypatch)


def rows() -> Tensor:
    return torch.randn(3, 48)


def sequence() -> Tensor:
    return torch.randn(2, 5, 32)


class OtherWidths(nn.Module):
    """An attention whose keys and values have widths of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, bias=False, kdim=16, vdim=24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x[..., :16], x[..., :24])[0]


def several_times(model: Any, x: Tensor) -> Tensor:
    return model.first(model.relu(model.first(x)) + model.second(x))


def tied_layers() -> nn.Module:
    model = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))
    model[2].weight = model[0].weight
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP": (mlp, rows),
    "CNN": (cnn, lambda: torch.randn(2, 3, 12, 12)),
    "residual": (lambda: nn.Sequential(Residual(), Residual()), lambda: torch.randn(2, 4, 6, 6)),
    "encoder": (encoder, sequence),
    "encoder, norms first": (lambda: encoder(norm_first=True, activation="gelu"), sequence),
    "encoder and decoder": (Translates, lambda: (sequence(), torch.randn(2, 4, 32))),
    "attention of other widths": (OtherWidths, sequence),
    "attention alone": (lambda: nn.MultiheadAttention(32, 4), lambda: (sequence(),) * 3),
    "tied": (Tied, lambda: torch.arange(12).view(2, 6)),
    "tied, head first": (lambda: Tied(head_first=True), lambda: torch.arange(12).view(2, 6)),
    "two layers, one weight": (tied_layers, rows),
    "graph of a tracer": (lambda: torch.fx.symbolic_trace(mlp()), rows),
    "root": (lambda: nn.Linear(48, 64), rows),
    "root convolution": (lambda: nn.Conv2d(4, 8, 3, padding=1), lambda: torch.randn(1, 4, 6, 6)),
    "layers several times": (lambda: Uses(several_times), rows),
    "one layer, two names": (lambda: nn.Sequential(layer := nn.Linear(48, 48), nn.ReLU(), layer), rows),
}
WITH_NORMS = {"CNN", "residual"}
"""Models whose norms are folded, so that their weights are other ones."""


def made(name: str, **kwargs: Any) -> tuple[nn.Module, Compressed, Any]:
    """A model with its zeros, the compressed one, and example inputs."""
    build, make = MODELS[name]
    model, inputs = build(), make()
    masks = masks_for(model)
    return dense(model, masks), compress(model, inputs, masks, margin=ALWAYS, **kwargs), inputs


def kinds(model: nn.Module) -> dict[str, type[nn.Module]]:
    modules = model.named_modules(remove_duplicate=False)
    return {name: torch.fx.GraphModule if isinstance(m, torch.fx.GraphModule) else type(m) for name, m in modules}


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


# What it is -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("has_kernels", [True, False])
def test_dense_model_computes_what_the_compressed_one_does(
    name: str, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        hide_native(monkeypatch)
    model, fast, inputs = made(name)
    assert packed(fast)
    plain = fast.to_dense()
    same(outputs(plain, inputs), outputs(fast, inputs))
    same(outputs(plain, inputs), outputs(model, inputs))


@pytest.mark.parametrize("name", MODELS)
def test_dense_model_has_the_modules_of_the_model_that_was_compressed(name: str) -> None:
    model, fast, _ = made(name)
    folded = dict.fromkeys(fast.recipe.norms.values(), nn.Identity)
    assert kinds(fast.to_dense()) == kinds(model) | folded
    assert bool(folded) == (name in WITH_NORMS)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - WITH_NORMS))
def test_dense_model_has_the_weights_of_the_masked_one_to_the_bit(name: str) -> None:
    model, fast, _ = made(name)
    state = fast.to_dense().state_dict()
    assert list(state) == list(model.state_dict())
    for key, wanted in model.state_dict().items():
        assert torch.equal(state[key], wanted), key


@pytest.mark.parametrize("name", MODELS)
def test_dense_model_comes_from_a_file_too(name: str, tmp_path: Path) -> None:
    _, fast, inputs = made(name)
    fast.save(tmp_path / "fast.safetensors")
    again = load_compressed(tmp_path / "fast.safetensors", MODELS[name][0]()).to_dense()
    plain = fast.to_dense()
    assert kinds(again) == kinds(plain)
    for one, other in zip(tensors(again), tensors(plain), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(outputs(again, inputs), outputs(plain, inputs), rtol=0, atol=0)


def test_model_of_torchs_own_layers_needs_no_class_on_the_way_back(tmp_path: Path) -> None:
    model, fast, x = made("MLP")
    fast.save(tmp_path / "fast.safetensors")
    again = load_compressed(tmp_path / "fast.safetensors").to_dense()
    assert repr(again) == repr(model)
    assert torch.equal(outputs(again, x), outputs(model, x))


@pytest.mark.parametrize("name", MODELS)
def test_compressed_model_stays_as_it_is_and_shares_no_memory_with_the_dense_one(name: str) -> None:
    _, fast, inputs = made(name)
    before = outputs(fast, inputs)
    with left_alone(fast):
        plain = fast.to_dense()
    with torch.no_grad():
        for tensor in tensors(plain):
            tensor.zero_()
    torch.testing.assert_close(outputs(fast, inputs), before, rtol=0, atol=0)


def test_dense_model_is_in_evaluation_mode_without_gradients_and_goes_where_any_model_goes() -> None:
    _, fast, x = made("CNN")
    with torch.inference_mode():
        plain = fast.to_dense()
    assert not any(module.training for module in plain.modules())
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in tensors(plain))
    same(plain.double()(x.double()).float(), outputs(fast, x))
    again = copy.deepcopy(plain)
    again.load_state_dict(plain.state_dict())
    assert again.requires_grad_(True).train()(x.double()).requires_grad


def test_dense_model_can_be_compressed_again() -> None:
    _, fast, x = made("encoder")
    again = compress(fast.to_dense(), x, margin=ALWAYS)
    assert packed(again).keys() == packed(fast).keys()
    same(outputs(again, x), outputs(fast, x))


def test_model_that_stayed_dense_is_copied() -> None:
    model, x = cnn(), torch.randn(2, 3, 12, 12)
    fast = compress(model, x, formats=[])
    assert packed(fast) == {}
    plain = fast.to_dense()
    assert kinds(plain) == kinds(fast.model)
    assert everything(plain) != everything(fast.model)
    assert torch.equal(outputs(plain, x), outputs(fast, x))


# What was done to it, undone or left ----------------------------------------------------------------------------------


def test_fused_layers_are_plain_again_with_their_activations() -> None:
    model, x = nn.Sequential(nn.Linear(48, 64), nn.Identity(), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), rows()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert type(fast.model) is Chain
    assert fast.recipe.activations == {"0": "2", "3": "4"}
    plain = fast.to_dense()
    assert repr(plain) == repr(model)
    assert type(plain) is nn.Sequential
    assert not hasattr(plain, "_steps")
    same(outputs(plain, x), outputs(dense(model, masks), x))


def test_empty_units_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compressing, "run_seconds", lambda dense, fast, examples: {"dense": 1.0, "fast": float(fast[0].weight.numel())}
    )
    model, x = mlp(), rows()
    prune_(model, sparsity=0.5, pattern=patterns.Channel(), include=["0.weight"])
    plain = compress(model, x, masks := masks_for(model), margin=ALWAYS).to_dense()
    assert [tuple(plain[i].weight.shape) for i in (0, 2, 4)] == [(32, 48), (96, 32), (40, 96)]
    same(outputs(plain, x), outputs(dense(model, masks), x))


def test_attention_that_has_lost_heads_keeps_the_form_that_shrinking_gave_it() -> None:
    model, x = encoder(), sequence()
    shrink_(model, x, sparsity=0.4)
    masks = masks_for(model)
    plain = compress(model, x, masks, margin=ALWAYS).to_dense()
    assert type(plain.layers[0].self_attn) is FreeHeadsAttention
    assert plain.layers[0].self_attn.num_heads < 4
    assert plain.state_dict().keys() == model.state_dict().keys()
    same(outputs(plain, x), outputs(dense(model, masks), x))


@pytest.mark.parametrize(("num_heads", "scale"), [(2, 8**-0.5), (4, 0.3), (2, 0.3)])
def test_attention_of_another_width_or_scale_than_torchs_keeps_its_form(num_heads: int, scale: float) -> None:
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    free_heads_(attention)
    attention.num_heads, attention.scale = num_heads, scale
    kept = torch.arange(96).view(3, 4, 8)[:, :num_heads].flatten()
    for name in ("in_proj_weight", "in_proj_bias"):
        setattr(attention, name, nn.Parameter(getattr(attention, name).detach()[kept]))
    attention.out_proj.weight = nn.Parameter(attention.out_proj.weight.detach()[:, : 8 * num_heads])
    model, inputs = attention, (sequence(),) * 3
    fast = compress(model, inputs, masks := masks_for(model), margin=ALWAYS)
    plain = fast.to_dense()
    assert type(plain) is FreeHeadsAttention
    same(outputs(plain, inputs), outputs(dense(model, masks), inputs))


def test_padded_encoder_returns_what_the_compressed_one_does_at_padded_positions_too() -> None:
    model = encoder()
    inputs = {"src": sequence(), "src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}
    fast = compress(model, inputs, masks_for(model), margin=ALWAYS)
    same(outputs(fast.to_dense(), inputs), outputs(fast, inputs))


TIED = {
    "tied": ("emb", "head"),
    "tied, head first": ("emb", "head"),
    "two layers, one weight": ("0", "2"),
    "one layer, two names": ("0", "2"),
}


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_are_one_again(name: str) -> None:
    _, fast, _ = made(name)
    one, other = map(fast.to_dense().get_submodule, TIED[name])
    assert one.weight is other.weight


def test_tied_weights_of_which_one_was_rounded_stay_two() -> None:
    model, tokens = Tied(), torch.arange(12)
    fast = compress(model, tokens, masks_for(model), margin=ALWAYS, values=torch.bfloat16)
    plain = fast.to_dense()
    assert torch.equal(plain.head.weight, plain.emb.weight.bfloat16().float())
    assert plain.head.weight is not plain.emb.weight
    same(outputs(plain, tokens), outputs(fast, tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["MLP", "encoder"])
def test_model_in_sixteen_bits_stays_in_them(name: str, dtype: torch.dtype) -> None:
    build, make = MODELS[name]
    model, x = build().to(dtype), make().to(dtype)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    plain, wanted = fast.to_dense(), dense(model, masks)
    for one, other in zip(tensors(plain), tensors(wanted), strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other)
    assert outputs(plain, x).dtype == dtype


def test_channels_come_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from secateur.runtime import choosing

    measured = choosing._seconds
    monkeypatch.setattr(choosing, "_seconds", lambda runs, between: measured(runs, between) | {CHANNELS_LAST: 1e-9})
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(2, 4, 8, 8)
    fast = compress(model, x, masks := masks_for(model), margin=0.1)
    assert set(fast.recipe.layers.values()) == {CHANNELS_LAST}
    plain = fast.to_dense()
    assert plain[0].weight.is_contiguous()
    assert plain(x).is_contiguous()
    same(outputs(plain, x), outputs(dense(model, masks), x))
    assert not fast.model[0].weight.is_contiguous()


@pytest.mark.integration
def test_linear_layers_of_transformers_keep_their_kind() -> None:
    from transformers.pytorch_utils import Conv1D

    model, x = nn.Sequential(Conv1D(64, 48), nn.ReLU(), Conv1D(40, 64)), torch.randn(2, 3, 48)
    plain = compress(model, x, masks := masks_for(model), margin=ALWAYS).to_dense()
    assert repr(plain) == repr(model)
    for one, other in zip(tensors(plain), tensors(dense(model, masks)), strict=True):
        assert torch.equal(one, other)
        assert one.is_contiguous()
    same(outputs(plain, x), outputs(dense(model, masks), x))


# Each layer in each format --------------------------------------------------------------------------------------------


def alone(layer: SparseLayer) -> nn.Module:
    """The dense layer of a compressed model that is one layer."""
    return Compressed(layer, Recipe(layers={"": layer.format}), Origin([], [], {"aliases": {}}), None).to_dense()


@given(st.sampled_from(sorted(LINEAR_FORMATS.keys() & LINEAR)), st.data())
def test_linear_layer_of_every_format_has_the_weight_that_was_packed(name: str, data: st.DataObject) -> None:
    outputs, inputs = (data.draw(st.integers(1, 6)) * 16 for _ in range(2))
    weight = masked((outputs, inputs), data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])), height=32)
    form = LINEAR_FORMATS[name]
    if form.misfit(weight):
        return
    bias, x = data.draw(st.sampled_from([None, torch.randn(outputs)])), torch.randn(3, inputs)
    parts = form.pack(weight, torch.float32)
    plain = alone(SparseLinear(name, parts, weight.shape, bias, relu=False, dtype=torch.float32))
    assert type(plain) is nn.Linear
    assert (plain.in_features, plain.out_features, plain.bias is None) == (inputs, outputs, bias is None)
    assert torch.equal(plain.weight, weight)
    assert torch.equal(plain(x), functional.linear(x, weight, bias))


@given(st.sampled_from(sorted(CONV_FORMATS.keys() & CONV) or sorted(CONV)), st.data())
def test_convolution_of_every_format_moves_as_the_packed_one_does(name: str, data: st.DataObject) -> None:
    outputs, inputs = (data.draw(st.integers(1, 12)) for _ in range(2))
    window, stride, padding, dilation = (
        tuple(data.draw(st.integers(least, 3)) for _ in range(2)) for least in (1, 1, 0, 1)
    )
    weight = masked((outputs, inputs, *window), data.draw(st.sampled_from([0.0, 0.6, 1.0])))
    bias, x = data.draw(st.sampled_from([None, torch.randn(outputs)])), torch.randn(2, inputs, 9, 8)
    geometry = Geometry(stride, padding, dilation)
    parts = CONV[name].pack(weight, torch.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(CONV_FORMATS, name, CONV[name])
        layer = SparseConv2d(name, parts, weight.shape, bias, relu=False, dtype=torch.float32, geometry=geometry)
        plain = alone(layer)
    assert type(plain) is nn.Conv2d
    assert torch.equal(plain.weight, weight)
    assert torch.equal(plain(x), functional.conv2d(x, weight, bias, *geometry))
