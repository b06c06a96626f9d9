"""A compressed model is the masked dense one, to rounding; the model that it is made of stays as it is."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import secateur
from secateur import InvalidInputError, ShapeError, UnsupportedError, patterns, prune_
from secateur.runtime import Compressed, compress, compressing
from secateur.runtime.layers import SparseConv2d, SparseLinear
from tests.runtime.models import (
    ALWAYS,
    Residual,
    Tied,
    Translates,
    Uses,
    cnn,
    dense,
    encoder,
    hide_native,
    left_alone,
    masks_for,
    mlp,
    outputs,
    pack_all,
    packed,
)

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")


@pytest.fixture(autouse=True)
def _pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_all(monkeypatch)


@pytest.fixture(params=["native", "hidden"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hidden":
        hide_native(monkeypatch)


# What it computes -----------------------------------------------------------------------------------------------------


def rows() -> Tensor:
    return torch.randn(3, 48)


def sequence() -> Tensor:
    return torch.randn(2, 5, 32)


def padding() -> Tensor:
    return torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


ENCODER = {"self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], set[str]]] = {
    "MLP": (mlp, rows, {"0", "2", "4"}),
    "MLP, one row": (mlp, lambda: torch.randn(1, 48), {"0", "2", "4"}),
    "MLP, no row": (mlp, lambda: torch.randn(0, 48), {"0", "2", "4"}),
    "MLP, a vector": (mlp, lambda: torch.randn(48), {"0", "2", "4"}),
    "MLP, many dims": (mlp, lambda: torch.randn(2, 1, 3, 48), {"0", "2", "4"}),
    "CNN": (cnn, lambda: torch.randn(2, 3, 12, 12), {"0", "4", "8", "10"}),
    "residual": (
        lambda: nn.Sequential(Residual(), Residual()),
        lambda: torch.randn(2, 4, 6, 6),
        {"0.first", "1.second"},
    ),
    "encoder": (encoder, sequence, {f"layers.{i}.{name}" for i in range(2) for name in ENCODER}),
    "encoder, norms first": (lambda: encoder(norm_first=True, activation="gelu"), sequence, {"layers.0.linear1"}),
    "encoder, padded": (
        encoder,
        lambda: {"src": sequence(), "src_key_padding_mask": padding()},
        {"layers.1.self_attn.in_proj"},
    ),
    "encoder, causal": (
        encoder,
        lambda: {"src": sequence(), "mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True},
        {"layers.0.linear2"},
    ),
    "encoder and decoder": (
        Translates,
        lambda: (sequence(), torch.randn(2, 4, 32)),
        {"both.decoder.layers.0.multihead_attn.q_proj", "both.decoder.layers.0.self_attn.in_proj"},
    ),
    "tied": (Tied, lambda: torch.arange(12).view(2, 6), {"body", "head"}),
    "root": (lambda: nn.Linear(48, 64), rows, {""}),
    "root convolution": (lambda: nn.Conv2d(4, 8, 3), lambda: torch.randn(1, 4, 6, 6), {""}),
    "image without batch": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()), lambda: torch.randn(4, 6, 6), {"0"}),
    "keyword": (mlp, lambda: {"input": torch.randn(2, 48)}, {"0"}),
    "tuple": (mlp, lambda: (torch.randn(2, 48),), {"0"}),
    "function": (mlp, lambda: lambda model: model(torch.ones(2, 48)), {"0"}),
}
USED: dict[str, tuple[Callable[[Any, Tensor], Any], set[str]]] = {
    "layers several times": (lambda m, x: m.first(m.relu(m.first(x)) + m.second(m.first(x))), {"first", "second"}),
    "several sizes": (lambda m, x: m.first(x) + m.first(x[:1]), {"first"}),
    "weights read": (lambda m, x: m.second(m.first(x)) + m.first.weight.sum() + m.first.bias, {"first", "second"}),
    "noise": (lambda m, x: m.first(x + torch.randn_like(x)), {"first"}),
    "outputs in a dict": (lambda m, x: {"a": m.first(x), "b": [m.second(x), 3]}, {"first", "second"}),
    "a ReLU and others": (lambda m, x: m.relu(y := m.first(x)) + y, {"first"}),
}
MODELS |= {name: (lambda run=run: Uses(run), rows, packed) for name, (run, packed) in USED.items()}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_compressed_model_is_the_masked_dense_one(name: str, training: bool) -> None:
    build, make, expected = MODELS[name]
    model, inputs = build().train(training), make()
    masks = masks_for(model)
    with left_alone(model):
        fast = compress(model, inputs, masks, margin=ALWAYS)
    assert expected <= packed(fast).keys()
    same(outputs(fast, inputs), outputs(dense(model, masks), inputs), inputs)
    assert fast.report is not None
    assert fast.report.error < 1e-5


def same(found: Any, wanted: Any, inputs: Any = None) -> None:
    """Compare outputs; those at positions that are padded mean nothing."""
    if isinstance(inputs, dict) and "src_key_padding_mask" in inputs:
        found, wanted = found[~inputs["src_key_padding_mask"]], wanted[~inputs["src_key_padding_mask"]]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder", "encoder, padded", "encoder and decoder", "tied"])
def test_compressed_model_runs_in_every_mode(name: str, mode: Callable[[], Any]) -> None:
    build, make, _ = MODELS[name]
    model, inputs = build(), make()
    fast = compress(model, inputs, masks := masks_for(model), margin=ALWAYS)
    with mode():
        found = secateur._passes.call_with(fast, inputs)
    assert not found.requires_grad
    same(found.clone(), outputs(dense(model, masks), inputs), inputs)


@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder"])
def test_compressed_model_that_was_made_in_inference_mode_runs_outside(name: str) -> None:
    build, make, expected = MODELS[name]
    with torch.inference_mode():
        model, x = build(), make()
        fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert expected <= packed(fast).keys()
    assert not any(tensor.is_inference() for tensor in (*fast.parameters(), *fast.buffers()))
    same(fast(x.clone()), outputs(dense(model, masks), x))


@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder"])
def test_compressed_model_takes_batches_of_other_sizes(name: str) -> None:
    build, make, _ = MODELS[name]
    model, x = build(), make()
    fast, slow = compress(model, x, masks := masks_for(model), margin=ALWAYS), dense(model, masks)
    for other in (x[:1], torch.cat([x, x, x]), x[:0]):
        same(outputs(fast, other), outputs(slow, other))


def with_weight_norm() -> nn.Module:
    model = mlp()
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[2])
    return model


def pruned_by_torch() -> nn.Module:
    model = mlp()
    for i in (0, 2):
        prune.l1_unstructured(model[i], "weight", 0.8)
    prune.random_unstructured(model[2], "weight", 0.2)
    return model


def pruned() -> nn.Module:
    model = mlp()
    prune_(model, sparsity=0.8)
    return model


@pytest.mark.parametrize(
    ("build", "expected"), [(with_weight_norm, set()), (pruned_by_torch, {"0", "2"}), (pruned, {"0", "2", "4"})]
)
def test_computed_and_masked_weights_are_taken_as_they_are(build: Callable[[], nn.Module], expected: set[str]) -> None:
    model, x = build().eval(), rows()
    with torch.no_grad():
        y = model(x)
    with left_alone(model):
        fast = compress(model, x, margin=ALWAYS)
    assert packed(fast).keys() == expected
    same(outputs(fast, x), y)
    assert torch.equal(model(x), y)


@pytest.mark.parametrize("sparsity", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("height", [1, 16, 32])
def test_patterns_are_all_taken(sparsity: float, height: int) -> None:
    model, x = mlp(), rows()
    masks = masks_for(model, sparsity, height)
    fast = compress(model, x, masks, margin=ALWAYS)
    same(outputs(fast, x), outputs(dense(model, masks), x))


def test_bfloat16_values_are_half_as_large_and_nearly_the_same() -> None:
    model, x = mlp(), rows()
    masks = masks_for(model)
    full, half = (compress(model, x, masks, margin=ALWAYS, values=v) for v in (torch.float32, torch.bfloat16))
    assert half.report is not None
    assert full.report is not None
    assert half.report.bytes < full.report.bytes
    assert 1e-5 < half.report.error < 1e-2
    rounded = dense(model, masks)
    for i in (0, 2, 4):
        rounded[i].weight.copy_(rounded[i].weight.bfloat16())
    same(outputs(half, x), outputs(rounded, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder"])
def test_models_in_sixteen_bits_stay_in_them(name: str, dtype: torch.dtype) -> None:
    build, make, expected = MODELS[name]
    model, x = build().to(dtype), make().to(dtype)
    masks = masks_for(model)
    with left_alone(model):
        fast = compress(model, x, masks, margin=ALWAYS)
    assert expected <= packed(fast).keys()
    found, wanted = outputs(fast, x), outputs(dense(model, masks), x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


def test_all_example_inputs_count() -> None:
    model, x = mlp(), rows()
    masks = masks_for(model)
    fast = compress(model, x, masks, margin=ALWAYS, more_inputs=[torch.randn(1, 48), {"input": torch.randn(2, 2, 48)}])
    for inputs in (x, x[:1], torch.randn(2, 2, 48)):
        same(outputs(fast, inputs), outputs(dense(model, masks), inputs))


def test_layer_that_some_examples_do_not_reach_is_packed_too() -> None:
    model = Uses(lambda m, x: m.first(x) if x.dim() == 2 else m.second(x))
    masks = masks_for(model)
    fast = compress(model, rows(), masks, margin=ALWAYS, more_inputs=[torch.randn(1, 2, 48)])
    assert packed(fast).keys() == {"first", "second"}
    for x in (rows(), torch.randn(1, 2, 48)):
        same(outputs(fast, x), outputs(dense(model, masks), x))


# What is done to layers, norms and activations ------------------------------------------------------------------------


def test_relu_alone_after_a_layer_becomes_part_of_it() -> None:
    fast = compress(cnn(), x := torch.randn(2, 3, 12, 12), masks_for(cnn()), margin=ALWAYS)
    assert fast.recipe.activations == {"0": "2", "4": "6"}
    assert fast.recipe.norms == {"0": "1", "4": "5", "10": "11"}
    assert isinstance(fast.model[0], SparseConv2d)
    assert fast.model[0].relu
    assert not fast.model[8].relu
    assert [type(fast.model[i]) for i in (1, 2, 5, 6, 11)] == [nn.Identity] * 5
    assert not fast(x).isnan().any()


class OwnReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def with_own_relu() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 64), OwnReLU(), nn.Linear(64, 48))


def with_hooked_relu() -> nn.Module:
    model = mlp()
    model[1].register_forward_hook(lambda _, args, y: 2 * y)
    return model


def with_forward_of_its_own() -> nn.Module:
    model = mlp()
    model[1].forward = torch.tanh
    return model


@pytest.mark.parametrize("build", [with_own_relu, with_hooked_relu, with_forward_of_its_own])
def test_relu_that_does_more_stays(build: Callable[[], nn.Module]) -> None:
    model, x = build(), rows()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert "0" in packed(fast)
    assert fast.recipe.activations == {}
    same(outputs(fast, x), outputs(dense(model, masks), x))


def test_layer_that_is_watched_stays_and_its_hooks_run() -> None:
    model, x, calls = mlp(), rows(), []
    model[0].register_forward_hook(lambda _, args, y: [calls.append(1), y + 1][1])
    model[2].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    model[4].register_full_backward_hook(lambda *_: None)
    with left_alone(model):
        fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast).keys() == {"4"}
    calls.clear()
    same(outputs(fast, x), outputs(dense(model, masks), x))
    assert len(calls) == 2
    assert fast.report is not None
    assert {line.name: line.why for line in fast.report.layers} == {"0": "it has hooks", "2": "it has hooks", "4": ""}


REASONS: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (1, 4, 5, 5), "convolution in groups"),
    "padding": (
        lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
        (1, 4, 5, 5),
        "padding of another kind",
    ),
    "uneven padding": (lambda: nn.Conv2d(4, 8, 2, padding="same"), (1, 4, 5, 5), "padding of another kind"),
    "one dim": (lambda: nn.Conv1d(4, 8, 3), (1, 4, 5), "Conv1d has no sparse format"),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 3), (1, 4, 5, 5), "ConvTranspose2d has no sparse format"),
    "double precision": (lambda: nn.Linear(48, 48).double(), (2, 48), "weights in torch.float64"),
    "a subclass": (lambda: type("Own", (nn.Linear,), {})(48, 48), (2, 48), "Own has no sparse format"),
    "never called": (lambda: Uses(lambda m, x: x + 1), (2, 48), "it was not called"),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", REASONS)
def test_layer_without_a_format_stays_dense_with_the_reason(name: str) -> None:
    build, shape, why = REASONS[name]
    model = build()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast) == {}
    assert torch.equal(outputs(fast, x), outputs(dense(model, masks), x))
    assert fast.report is not None
    assert {line.why for line in fast.report.layers} == {why}
    assert f"dense because {why}: " in str(fast.report)


def test_nothing_sparse_stays_as_it_is() -> None:
    model, x = mlp(), rows()
    fast = compress(model, x, margin=ALWAYS)
    assert packed(fast) == {}
    assert torch.equal(outputs(fast, x), outputs(dense(model), x))
    assert fast.report is not None
    assert {line.why for line in fast.report.layers} == {"less than 30% zeros"}
    assert fast.report.error == 0
    assert fast.report.bytes == fast.report.dense_bytes


def test_recurrent_parts_stay_and_the_rest_is_packed() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 48)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    model, x = Reads(), torch.randn(2, 5, 16)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast).keys() == {"head"}
    same(outputs(fast, x), outputs(dense(model, masks), x))


@pytest.mark.integration
def test_linear_layers_of_transformers_are_packed() -> None:
    from transformers.pytorch_utils import Conv1D

    model, x = nn.Sequential(Conv1D(64, 48), nn.ReLU(), Conv1D(48, 64)), torch.randn(2, 3, 48)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast).keys() == {"0", "2"}
    assert torch.equal(fast.model[2].weight, dense(model, masks)[2].weight)
    same(outputs(fast, x), outputs(dense(model, masks), x))


class Listed(nn.Module):
    """Modules that are also in a list that torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.norm.running_mean.normal_()
        self.steps = [self.conv, self.norm, self.relu]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


def test_modules_that_are_called_past_their_names_are_left_alone() -> None:
    model, x = Listed(), torch.randn(1, 4, 6, 6)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    same(outputs(fast, x), outputs(dense(model, masks), x))


class TwoNames(nn.Module):
    """Each module has two names, and is called by the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.norm.running_mean.normal_()
        self.parts = nn.ModuleList([self.conv, self.norm, self.relu])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def test_module_with_two_names_is_packed_under_both() -> None:
    model, x = TwoNames(), torch.randn(1, 4, 6, 6)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert isinstance(fast.model.conv, SparseConv2d)
    assert fast.model.parts[0] is fast.model.conv
    assert fast.recipe.norms == {"conv": "norm"}
    same(outputs(fast, x), outputs(dense(model, masks), x))


class Writes(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mul_(2))


def test_inputs_that_the_model_changes_stay_as_they_are() -> None:
    model, x = Writes(), rows()
    before = x.clone()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS, more_inputs=[(x,)])
    assert torch.equal(x, before)
    assert "layer" in packed(fast)
    same(outputs(fast, x.clone()), outputs(dense(model, masks), x.clone()))


class Remembers(nn.Module):
    """Counts its calls and keeps what it was given last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 48)
        self.register_buffer("calls", torch.zeros(()))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.clone()
        return self.layer(x) * self.calls


def test_model_that_remembers_is_returned_as_it_was_given() -> None:
    model, x = Remembers(), rows()
    state = torch.get_rng_state()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert torch.equal(torch.get_rng_state(), state)
    assert (float(fast.model.calls), fast.model.last) == (0, None)
    slow = dense(model, masks)
    for _ in range(2):
        same(outputs(fast, x), outputs(slow, x))


def test_training_goes_on_as_if_nothing_had_happened() -> None:
    def trained(compresses: bool) -> nn.Module:
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        prune_(model, optimizer, sparsity=0.8)
        for step in range(4):
            x = torch.randn(5, 48)
            optimizer.zero_grad()
            model(x).square().sum().backward()
            if compresses and step == 1:
                with left_alone(model):
                    compress(model, x, margin=ALWAYS)
            optimizer.step()
        return model

    for one, other in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        assert torch.equal(one, other)


# Empty units ----------------------------------------------------------------------------------------------------------


def emptied() -> nn.Sequential:
    model = mlp()
    prune_(model, sparsity=0.5, pattern=patterns.Channel(), include=["0.weight"])
    return model


def smaller_is_faster(dense: nn.Module, fast: nn.Module, examples: Any) -> dict[str, float]:
    return {"dense": 1e6, "fast": float(sum(layer.weight.numel() for layer in (fast[0], fast[2], fast[4])))}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("formats", [[], None])
def test_empty_units_are_removed_with_a_note(formats: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressing, "run_seconds", smaller_is_faster)
    model, x = emptied(), rows()
    with left_alone(model):
        fast = compress(model, x, formats=formats, margin=ALWAYS)
    assert fast.report is not None
    assert tuple(fast.model[0].weight.shape) == (32, 48)
    assert tuple(fast.model[2].weight.shape) == (96, 32)
    assert any(note.startswith("empty units removed: ") for note in fast.report.notes)
    same(outputs(fast, x), outputs(dense(model), x))


def test_empty_units_stay_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compressing, "run_seconds", lambda *each: {"dense": 1.0, "fast": 1 / smaller_is_faster(*each)["fast"]}
    )
    model, x = emptied(), rows()
    fast = compress(model, x)
    assert fast.report is not None
    assert fast.report.notes[0] == "empty units stay: the model is faster with them"
    assert tuple(fast.model[0].weight.shape) == (64, 48)
    same(outputs(fast, x), outputs(dense(model), x))


def test_units_whose_removal_changes_the_noise_stay() -> None:
    class Shaken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(48, 64), nn.Linear(64, 40)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(y * torch.rand_like(y))

    model, x = Shaken(), rows()
    prune_(model, sparsity=0.5, pattern=patterns.Channel(), include=["first.weight"])
    fast = compress(model, x, margin=ALWAYS)
    same(outputs(fast, x), outputs(dense(model), x))
    assert fast.report is not None
    assert fast.report.error < 1e-5


# What is measured -----------------------------------------------------------------------------------------------------


def test_whole_model_goes_back_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressing, "run_seconds", lambda dense, fast, examples: {"dense": 1.0, "fast": 1.1})
    model, x = cnn(), torch.randn(2, 3, 12, 12)
    fast = compress(model, x, masks := masks_for(model), margin=-0.05)
    assert packed(fast) == {}
    assert fast.recipe.norms == {"0": "1", "4": "5", "10": "11"}
    assert fast.report is not None
    assert "packed layers do not make the whole model faster" in {line.why for line in fast.report.layers}
    same(outputs(fast, x), outputs(dense(model, masks), x))


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_whole_model_goes_back_where_its_outputs_change(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressing, "difference", lambda dense, fast, examples: error if packed(fast) else 0.0)
    model, x = mlp(), rows()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast) == {}
    assert fast.report is not None
    assert {line.why for line in fast.report.layers} == {f"packed layers change the model's outputs by {error:.1e}"}
    assert torch.equal(outputs(fast, x), outputs(dense(model, masks), x))


def test_only_formats_that_are_allowed_are_taken() -> None:
    model, x = mlp(), rows()
    masks = masks_for(model, 0.9, 32)
    for name in ("grouped", "torch csr"):
        assert set(packed(compress(model, x, masks, margin=ALWAYS, formats=[name])).values()) == {name}
    assert packed(compress(model, x, masks, margin=ALWAYS, formats=[])) == {}
    fast = compress(model, x, masks_for(model), margin=ALWAYS, formats={"grouped"})
    assert fast.report is not None
    assert {line.why for line in fast.report.layers} == {"no format holds it"}


def test_format_has_to_be_faster_by_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    from secateur.runtime import choosing

    def measured(runs: dict[str, Any], between: Any) -> dict[str, float]:
        return {name: {"dense": 1.0, "grouped": 0.92, "torch csr": 0.9}[name] for name in runs}

    monkeypatch.setattr(choosing, "_seconds", measured)
    model, x = mlp(), rows()
    masks = masks_for(model, 0.9, 32)
    for margin, names in ((0.05, {"torch csr"}), (0.1, {"torch csr"}), (0.11, set())):
        fast = compress(model, x, masks, margin=margin, formats=["grouped", "torch csr"])
        assert set(packed(fast).values()) == names
    assert fast.report is not None
    assert {line.why for line in fast.report.layers} == {"no format is faster"}


def test_report_has_every_figure() -> None:
    model, x = cnn(), torch.randn(2, 3, 12, 12)
    masks = masks_for(model, 0.8)
    report = compress(model, x, masks, margin=ALWAYS).report
    assert report is not None
    assert [line.name for line in report.layers] == ["0", "4", "7", "8", "10"]
    first, _, third, _, last = report.layers
    assert first.shape == (8, 3, 3, 3)
    assert first.sparsity == pytest.approx(1 - int(masks["0.weight"].sum()) / 216)
    assert first.dense_bytes == 4 * (8 * 27 + 8)
    assert (third.format, third.why, third.bytes) == ("dense", "convolution in groups", third.dense_bytes)
    assert last.pattern == "unstructured"
    assert report.dense_bytes == sum(t.numel() * t.itemsize for t in (*model.parameters(), *model.buffers()))
    assert report.speedup == 2.0
    assert report.threads == torch.get_num_threads()
    assert "BatchNorm folded into 3 layers" in report.notes
    assert report.notes[-1].startswith("native kernels: ")


def test_report_prints_and_goes_through_json() -> None:
    model = mlp()
    report = compress(model, rows(), {"0.weight": masks_for(model)["0.weight"]}, margin=ALWAYS).report
    assert report is not None
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "shape", "sparsity", "pattern", "format", "predicted", "measured", "bytes"]
    assert lines[1].startswith("0      64 x 48  ")
    assert "dense because less than 30% zeros: 2, 4" in lines
    assert "whole model: 2e+03 -> 1e+03 ms, 2.00x (1 thread)" in str(report)
    found = json.loads(json.dumps(report.to_dict()))
    assert found["speedup"] == 2.0
    assert [line["name"] for line in found["layers"]] == ["0", "2", "4"]
    assert found["layers"][0]["shape"] == [64, 48]


def test_figures_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = mlp()
    report = compress(model, rows(), masks_for(model)).report
    assert report is not None
    assert report.seconds > 0
    assert report.dense_seconds > 0
    for line in report.layers:
        assert line.predicted > 0
        assert line.measured > 0


# What is refused ------------------------------------------------------------------------------------------------------


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "values": ({"values": torch.float16}, InvalidInputError, r"float32 or bfloat16(?s:.*)values: torch.float16"),
    "margin": ({"margin": 1.0}, InvalidInputError, r"less than 1(?s:.*)margin: 1.0"),
    "no margin": ({"margin": "a"}, InvalidInputError, r"less than 1(?s:.*)margin: a"),
    "margin is nan": ({"margin": float("nan")}, InvalidInputError, "less than 1"),
    "format": ({"formats": ["cells"]}, InvalidInputError, r"list of names(?s:.*)known: .*grouped"),
    "formats in one text": ({"formats": "grouped"}, InvalidInputError, "list of names"),
    "masks": ({"masks": {"1.weight": torch.ones(1) > 0}}, InvalidInputError, "no parameter"),
    "mask of another shape": ({"masks": {"0.weight": torch.ones(48, 64) > 0}}, ShapeError, "another shape"),
    "mask of numbers": ({"masks": {"0.weight": torch.ones(64, 48)}}, InvalidInputError, "no bool tensor"),
    "inputs": ({"example_inputs": torch.randn(3, 47)}, RuntimeError, "mat1 and mat2"),
    "more inputs": ({"more_inputs": [torch.randn(3, 47)]}, RuntimeError, "mat1 and mat2"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused_and_the_model_is_left_alone(what: str) -> None:
    kwargs, kind, match = WRONG[what]
    model = mlp().train()
    with left_alone(model), pytest.raises(kind, match=match):
        compress(**({"model": model, "example_inputs": rows()} | kwargs))


def test_what_is_no_model_on_the_cpu_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="model"):
        compress(torch.ones(2), rows())  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="load the weights first"):
        compress(nn.Linear(48, 48, device="meta"), rows())


@pytest.fixture
def fast() -> Compressed:
    model = cnn()
    return compress(model, torch.randn(2, 3, 12, 12), masks_for(model), margin=ALWAYS)


def test_training_a_compressed_model_is_refused(fast: Compressed) -> None:
    for way in (fast.train, fast.requires_grad_, fast.model[0].train, lambda: fast.train(True)):
        with pytest.raises(UnsupportedError, match=r"for inference(?s:.*)train the model that it was made of"):
            way()
    with pytest.raises(UnsupportedError, match="cannot train through a compressed layer"):
        fast(torch.randn(2, 3, 12, 12, requires_grad=True))
    assert fast.eval() is fast
    assert fast.train(False) is fast
    assert fast.requires_grad_(False) is fast
    assert not any(module.training for module in fast.modules())


@pytest.mark.parametrize(
    "move", [lambda m: m.half(), lambda m: m.double(), lambda m: m.to("meta"), lambda m: m.to(torch.bfloat16)],
    ids=["half", "double", "to meta", "to bfloat16"],
)  # fmt: skip
def test_moving_a_compressed_model_is_refused_with_nothing_changed(
    fast: Compressed, move: Callable[[Any], Any]
) -> None:
    x = torch.randn(2, 3, 12, 12)
    y = outputs(fast, x)
    with left_alone(fast), pytest.raises(UnsupportedError, match=r"stays in the dtype(?s:.*)asked: "):
        move(fast)
    assert torch.equal(outputs(fast, x), y)
    assert torch.equal(outputs(fast.cpu().float().to("cpu"), x), y)


def test_inputs_that_do_not_fit_are_refused(fast: Compressed) -> None:
    with pytest.raises(ShapeError, match=r"another width(?s:.*)wanted: 3"):
        fast(torch.randn(2, 4, 12, 12))
    with pytest.raises(InvalidInputError, match="another dtype"):
        fast(torch.randn(2, 3, 12, 12).double())
    with pytest.raises(InvalidInputError, match="on the CPU, and its input is not"):
        fast(torch.randn(2, 3, 12, 12, device="meta"))


# What it is -----------------------------------------------------------------------------------------------------------


def test_compressed_model_has_what_the_model_has() -> None:
    class Named(nn.Sequential):
        config = "of the model"

        def doubled(self, x: Tensor) -> Tensor:
            return 2 * self(x)

    model, x = Named(*mlp()), rows()
    fast = compress(model, x, masks_for(model), margin=ALWAYS)
    assert fast.config == "of the model"
    assert torch.equal(fast.doubled(x), 2 * fast(x))
    with pytest.raises(AttributeError, match="absent"):
        _ = fast.absent
    assert repr(fast).startswith("Compressed(\n  2.00x\n  (model): Named(")


def test_copy_of_a_compressed_model_is_its_own(fast: Compressed) -> None:
    x = torch.randn(2, 3, 12, 12)
    y = outputs(fast, x)
    twin = copy.deepcopy(fast)
    assert not {t.data_ptr() for t in twin.buffers() if t.numel()} & {t.data_ptr() for t in fast.buffers()}
    del fast
    assert torch.equal(outputs(twin, x), y)


@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder", "tied"])
def test_compressed_model_is_compiled_into_one_graph(name: str) -> None:
    build, make, _ = MODELS[name]
    model, x = build(), make()
    fast = compress(model, x, masks_for(model), margin=ALWAYS)
    torch._dynamo.reset()
    compiled = torch.compile(fast, fullgraph=True, backend="eager")
    same(outputs(compiled, x), outputs(fast, x))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["MLP", "CNN", "encoder", "tied"])
def test_compressed_model_is_exported(name: str) -> None:
    build, make, _ = MODELS[name]
    model, x = build(), make()
    fast = compress(model, x, masks_for(model), margin=ALWAYS)
    program = torch.export.export(fast, (x,), strict=False)
    same(program.module()(x), outputs(fast, x))


def test_packed_layers_are_linear_and_conv(fast: Compressed) -> None:
    kinds = {name: type(fast.model.get_submodule(name)) for name in packed(fast)}
    assert kinds == {"0": SparseConv2d, "4": SparseConv2d, "8": SparseConv2d, "10": SparseLinear}


# What an example does not show ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Both:
    """A result that torch does not look into."""

    hidden: Tensor
    logits: Tensor


class Shows(nn.Module):
    """Keeps, or gives away, what comes before its ReLU and its norm."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.norm, self.act = nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU()
        self.head, self.how, self.last = nn.Linear(64, 10), how, torch.zeros(0)

    def forward(self, x: Tensor, kept: list[Tensor] | None = None) -> Any:
        hidden = self.fc(x)
        logits = self.head(self.act(self.norm(hidden)))
        if self.how == "attribute":
            self.last = hidden
        if kept is not None:
            kept.append(hidden)
        return Both(hidden, logits) if self.how == "dataclass" else logits


@pytest.mark.parametrize("how", ["dataclass", "attribute", "list"])
def test_what_somebody_holds_is_the_result_of_the_layer_alone(how: str) -> None:
    model = Shows(how).eval()
    nn.init.normal_(model.norm.running_mean)
    for name, mask in masks_for(model).items():
        model.get_parameter(name).data.mul_(mask)
    kept: list[Tensor] = []
    x = torch.randn(3, 48)
    fast = compress(model, lambda m: m(x, kept), margin=ALWAYS)
    with torch.no_grad():
        found, expected = fast(x, mine := []), model(x, theirs := [])
    hidden = {"dataclass": lambda r, m, h: r.hidden, "attribute": lambda r, m, h: m.last, "list": lambda r, m, h: h[0]}
    torch.testing.assert_close(hidden[how](found, fast.model, mine), hidden[how](expected, model, theirs))


def test_relu_that_another_branch_shares_stays() -> None:
    class Forks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.relu, self.b = nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48)

        def forward(self, x: Tensor, other: bool = False) -> Tensor:
            return self.relu(self.b(x) if other else self.a(x))

    model, x = Forks().eval(), torch.randn(3, 48)
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    reference = dense(model, masks)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, other=True), reference(x, other=True))


def test_attribute_of_the_model_is_set_through_the_wrapper() -> None:
    model, x = Shows(""), rows()
    fast = compress(model.eval(), x, masks_for(model), margin=ALWAYS)
    fast.how = "dataclass"
    assert fast.model.how == "dataclass"
    fast.own = 1
    assert not hasattr(fast.model, "own")


def test_model_that_differentiates_in_its_forward_stays_dense() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(48, 48)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.fc(x).pow(2).sum(), x)[0]

    model, x = Slope(), rows()
    fast = compress(model, x, masks := masks_for(model), margin=ALWAYS)
    assert packed(fast) == {}
    assert "packed layers cannot do what the model does" in str(fast.report)
    assert torch.equal(fast(x), dense(model, masks)(x))
