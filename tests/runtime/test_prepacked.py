"""Dense layers in oneDNN's order: the model stays what it was, in memory orders of its own, and says what it costs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import compress, load_compressed
from secateur.runtime import choosing, compressing, profile
from secateur.runtime.compressed import Compressed
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS
from secateur.runtime.recipe import CHANNELS_LAST
from secateur.runtime.trial import Trial
from tests.runtime.models import dense, encoder, outputs, packed, with_statistics

pytestmark = pytest.mark.skipif(bool(LINEAR_FORMATS["prepacked"].absence()), reason="torch is without oneDNN here")


def convolutional() -> nn.Sequential:
    """Convolutions of which some can be prepacked: not the first, which has three channels, nor the one in groups."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=4),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(24, 8, 1),
        nn.Flatten(),
        nn.Linear(8 * 9, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )
    return with_statistics(model)


@pytest.fixture(autouse=True)
def _prepacked_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the prepacked format taken wherever it is tried."""

    def measured(runs: Mapping[str, Any], between: Any) -> dict[str, float]:
        return {name: {"prepacked": 1.0, "dense": 2.0}.get(name, 3.0) for name in runs}

    monkeypatch.setattr(choosing, "_seconds", measured)
    monkeypatch.setattr(compressing, "run_seconds", lambda dense, fast, examples: {"dense": 2.0, "fast": 1.0})


def image() -> Tensor:
    return torch.randn(2, 3, 12, 12)


def made() -> tuple[nn.Sequential, Tensor, Compressed]:
    model, x = convolutional(), image()
    return model, x, compress(model, x)


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_model_without_zeros_returns_what_it_did() -> None:
    model, x, fast = made()
    assert packed(fast) == dict.fromkeys(["5", "7", "9", "11"], "prepacked")
    assert fast.recipe.activations == {"5": "6", "9": "10"}
    same(outputs(fast, x), outputs(dense(model), x))
    for shape in ((1, 3, 12, 12), (5, 3, 12, 12)):
        other = torch.randn(shape)
        same(outputs(fast, other), outputs(dense(model), other))
        last = other.contiguous(memory_format=torch.channels_last)
        same(outputs(fast, last), outputs(dense(model), other))


def test_attentions_of_a_dense_encoder_are_opened_and_stay_right() -> None:
    model, x = encoder(), torch.randn(3, 7, 32)
    fast = compress(model, x)
    assert set(packed(fast).values()) == {"prepacked"}
    same(outputs(fast, x), outputs(dense(model), x))


def test_its_copy_of_the_weights_is_counted() -> None:
    _, x, fast = made()
    assert fast.report is not None
    lines = {line.name: line for line in fast.report.layers}
    assert lines["5"].bytes == 4 * (2 * 24 * 16 * 9 + 24)
    assert lines["11"].bytes == 4 * (2 * 40 * 10 + 10)
    assert lines["3"].bytes == lines["3"].dense_bytes
    norm, bias = 4 * 4 * 16 + 8, 4 * 16
    copies = 4 * (24 * 16 * 9 + 24 * 8 + 72 * 40 + 40 * 10)
    assert fast.report.bytes == fast.report.dense_bytes + copies - norm + bias
    assert profile(fast, x, seconds=0).rows[0].bytes == fast.report.bytes


def test_products_and_parameters_are_those_of_the_dense_model() -> None:
    model, x, fast = made()
    rows = profile({"dense": model.eval(), "fast": fast, "plain": fast.to_dense()}, x, seconds=0).rows
    assert len({row.macs for row in rows}) == 1
    assert len({row.nonzero_macs for row in rows}) == 1
    assert rows[1].parameters == rows[2].parameters


def test_file_brings_it_back_and_is_no_larger_than_the_dense_model(tmp_path: Path) -> None:
    model, x, fast = made()
    fast.save(tmp_path / "fast.safetensors")
    again = load_compressed(tmp_path / "fast.safetensors")
    assert packed(again) == packed(fast)
    assert torch.equal(outputs(again, x), outputs(fast, x))
    size = sum(parameter.numel() for parameter in model.parameters()) * 4
    assert (tmp_path / "fast.safetensors").stat().st_size < size + 8000


def test_layers_are_dense_where_there_is_no_onednn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, x, fast = made()
    fast.save(tmp_path / "fast.safetensors")
    expected = outputs(fast, x)
    monkeypatch.setattr("secateur._compat.has_prepacking", lambda: False)
    again = load_compressed(tmp_path / "fast.safetensors")
    assert packed(again) == {}
    same(outputs(again, x), expected)
    assert packed(compress(convolutional(), x)) == {}


def test_user_who_switches_onednn_off_gets_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINEAR_FORMATS["prepacked"].absence() == CONV_FORMATS["prepacked"].absence() == ""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert "oneDNN" in LINEAR_FORMATS["prepacked"].absence()
    assert packed(compress(convolutional(), image())) == {}


def test_dense_model_comes_back_to_the_bit() -> None:
    model, x, fast = made()
    plain = fast.to_dense()
    for path in ("5", "7", "9", "11"):
        assert torch.equal(plain.get_submodule(path).weight, model.get_submodule(path).weight)
    same(outputs(plain, x), outputs(dense(model), x))


@pytest.mark.parametrize("strict", [False, True])
def test_graphs_hold_torchs_own_ops(strict: bool, tmp_path: Path) -> None:
    _, x, fast = made()
    program = torch.export.export(fast.model, (x,), strict=strict)
    ops = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("secateur" in op or "mkldnn" in op for op in ops)
    same(program.module()(x), outputs(fast, x))
    torch.export.save(program, tmp_path / "fast.pt2")
    same(torch.export.load(tmp_path / "fast.pt2").module()(x), outputs(fast, x))


def test_it_compiles_into_one_graph() -> None:
    _, x, fast = made()
    torch._dynamo.reset()
    same(outputs(torch.compile(fast, fullgraph=True, backend="eager"), x), outputs(fast, x))
    torch._dynamo.reset()


def test_copies_before_and_after_the_first_call_are_their_own() -> None:
    _, x, fast = made()
    early, y = copy.deepcopy(fast), outputs(fast, x)
    late = copy.deepcopy(fast)
    del fast
    assert torch.equal(outputs(early, x), y)
    assert torch.equal(outputs(late, x), y)


def test_layers_that_would_stay_are_all_prepacked_if_the_model_is_faster_so(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"dense": 1.0, CHANNELS_LAST: 1.5, "prepacked": 1.2}
    monkeypatch.setattr(choosing, "_seconds", lambda runs, between: {name: slow[name] for name in runs})

    def seconds(plain: nn.Module, fast: nn.Module, examples: Any) -> dict[str, float]:
        return {"dense": 1.0, "fast": 1.0 - 0.1 * sum(form == "prepacked" for form in packed(fast).values())}

    monkeypatch.setattr(compressing, "run_seconds", seconds)
    model, x = convolutional(), image()
    fast = compress(model, x)
    packable = dict.fromkeys(["5", "7", "9", "11"], "prepacked")
    assert fast.recipe.layers == {"0": CHANNELS_LAST, "3": CHANNELS_LAST, **packable}
    same(outputs(fast, x), outputs(dense(model), x))
    assert compress(model, x, formats=["prepacked"]).recipe.layers == packable
    assert compress(model, x, formats=[]).recipe.layers == {}


def test_orders_that_change_nothing_are_not_measured() -> None:
    trial = Trial(convolutional().eval(), [image()])
    options: dict[str, Any] = {"values": torch.float32, "margin": 0.05}
    assert list(trial.in_one_form(trial.choices(**options, allowed=[]))) == []
    found = trial.choices(**options, allowed=None)
    assert [found[path].format for path in ("0", "3", "5", "7")] == ["dense", "dense", "prepacked", "prepacked"]
    (one,) = trial.in_one_form(found)
    assert [one[path].format for path in ("0", "3", "5", "7")] == [CHANNELS_LAST] * 2 + ["prepacked"] * 2
    assert list(trial.in_one_form({path: dataclasses.replace(each) for path, each in one.items()})) == []


class Views(nn.Module):
    """A model whose code holds for images with the channels first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3)
        self.head = nn.Linear(8 * 100, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        return self.head(y.view(len(y), -1))


@pytest.mark.parametrize("sparsity", [0.0, 0.9])
def test_model_that_looks_at_memory_order_keeps_its_own(sparsity: float) -> None:
    model, x = Views(), torch.randn(3, 8, 12, 12)
    masks = {name: torch.rand(p.shape) >= sparsity for name, p in model.named_parameters() if p.dim() == 4}
    fast = compress(model, x, masks)
    assert packed(fast) == {"head": "prepacked"}
    assert fast.report is not None
    assert {line.why for line in fast.report.layers[:2]} == {"the model cannot have the channels last"}
    same(outputs(fast, x), outputs(dense(model, masks), x))


@pytest.mark.skipif(bool(CONV_FORMATS["direct"].absence()), reason="sparse convolutions need the kernels")
def test_sparse_convolutions_stay_where_the_channels_cannot_be_last(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"dense": 2.0, "prepacked": 1.0, "direct": 1.5}
    monkeypatch.setattr(choosing, "_seconds", lambda runs, between: {name: slow.get(name, 3.0) for name in runs})
    model, x = Views(), torch.randn(3, 8, 12, 12)
    masks = {name: torch.rand(p.shape) < 0.1 for name, p in model.named_parameters() if p.dim() == 4}
    fast = compress(model, x, masks)
    assert packed(fast) == {"first": "direct", "second": "direct", "head": "prepacked"}
    same(outputs(fast, x), outputs(dense(model, masks), x))


def test_code_that_looks_at_memory_order_at_other_sizes_is_found_out() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.second(self.first(x))
            return y.view(len(y), -1).sum(1)

    model = Sums()
    fast = compress(model, torch.randn(2, 8, 1, 1))
    assert packed(fast) == {}
    x = torch.randn(3, 8, 4, 5)
    same(outputs(fast, x), outputs(dense(model), x))


def test_nan_stays_nan_behind_a_relu() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 5), nn.ReLU())
    x = torch.randn(2, 8, 5, 5)
    fast = compress(model, x)
    assert packed(fast) == {"0": "prepacked", "3": "prepacked"}
    x[0, 0, 0, 0] = float("nan")
    expected = outputs(dense(model), x)
    assert expected[0].isnan().all()
    torch.testing.assert_close(outputs(fast, x), expected, equal_nan=True)


def test_bound_before_or_after_onednn_is_switched_off_it_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _, x, fast = made()
    late, expected = copy.deepcopy(fast), outputs(fast, x)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    same(outputs(late, x), expected)
    same(outputs(fast, x), expected)


@pytest.mark.parametrize(("seconds", "is_taken"), [(0.94, True), (0.97, False)])
def test_more_memory_has_to_buy_at_least_the_margin(
    seconds: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(plain: nn.Module, fast: nn.Module, examples: Any) -> dict[str, float]:
        return {"dense": 1.0, "fast": seconds if packed(fast) else 1.0}

    monkeypatch.setattr(compressing, "run_seconds", measured)
    model, x = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(3, 48)
    fast = compress(model, x, margin=0.05)
    assert packed(fast) == ({"0": "prepacked", "2": "prepacked"} if is_taken else {})
    assert fast.report is not None
    why = {line.why for line in fast.report.layers}
    assert is_taken or why == {"packed layers do not make the whole model faster"}
