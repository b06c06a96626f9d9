"""Profiles of models, which are left as they were."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import secateur
from secateur import InvalidInputError, UnsupportedError
from secateur.runtime.profiling import profile
from tests.runtime.nets import X, net, sizes


def test_a_model_on_the_meta_device_has_sizes_only() -> None:
    model = net()
    expected = sizes(model)
    found = profile({"it": model.to("meta")}, X.to("meta"))
    row = found["it"]
    assert (row.parameters, row.macs, row.bytes) == (expected.parameters, expected.macs, expected.bytes)
    assert (row.nonzeros, row.nonzero_macs, row.latency) == (None, None, None)
    assert "no values" in row.note
    assert "median" not in str(found)


def test_a_fake_model_has_sizes_only() -> None:
    expected = sizes(net())
    with FakeTensorMode():
        row = profile({"it": net()}, torch.randn(X.shape))["it"]
    assert (row.parameters, row.macs, row.bytes) == (expected.parameters, expected.macs, expected.bytes)
    assert (row.nonzeros, row.nonzero_macs, row.latency) == (None, None, None)


def test_a_slower_model_has_a_speed_up_below_one() -> None:
    class Slow(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.005)
            return super().forward(x)

    found = profile({"fast": nn.ReLU(), "slow": Slow()}, X, seconds=0.01)
    assert found.speed_ups["fast"] == 1
    assert found.speed_ups["slow"] < 0.9
    assert found["slow"].latency is not None
    assert found["slow"].latency.median >= 5


# ---- left as it was


class Restless(nn.Module):
    """Changes buffers and attributes, draws numbers, and tells how it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.dropout = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()
        self.register_buffer("seen", torch.zeros(()))
        self.count = 0
        self.runs: set[tuple[Any, ...]] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.count += 1
        random.random(), np.random.rand(), torch.rand(())
        how = self.training, torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
        self.runs.add(how)
        return self.dropout(self.norm(self.fc(x)))


def test_models_are_left_as_they_were() -> None:
    model = Restless()
    model.norm.eval()
    model(torch.randn(4, 3)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    model.count = 7
    profile({"one": model, "same": model}, torch.randn(4, 3, generator=torch.Generator()), seconds=0.01)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.count == 7
    assert all(p.grad is g for p, (g, _) in zip(model.parameters(), gradients, strict=True))
    assert all(g is None or torch.equal(g, value) for g, value in gradients)
    assert [module.training for module in model.modules()] == modes
    assert states[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(states[2], torch.get_rng_state())


def test_models_run_in_evaluation_mode_without_gradients_with_torchs_fast_paths_when_timed() -> None:
    model = Restless()
    profile(model, torch.randn(4, 3), seconds=0.01)
    assert model.runs == {(False, False, False, 1), (False, False, True, 1)}


def test_the_number_of_threads_holds_meanwhile() -> None:
    model = Restless()
    found = profile(model, torch.randn(4, 3), seconds=0.01, threads=2)
    assert {run[-1] for run in model.runs} == {2}
    assert torch.get_num_threads() == 1
    assert "2 threads" in found.machine


def test_a_compiled_model_runs_compiled() -> None:
    compilations = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    model = net()
    row = profile(torch.compile(model, backend=backend), X, seconds=0.01)["Sequential"]
    assert len(compilations) == 1
    assert row.macs == sizes(model).macs


def test_a_profile_of_one_model_has_no_speed_up() -> None:
    head = str(profile(net(), X, seconds=0.01)).splitlines()[1]
    assert "median" in head
    assert "speed-up" not in head


def test_a_profile_goes_into_json() -> None:
    found = profile(
        {"a": net(), "b": net().to("meta")}, lambda model: model(X.to(model[0].weight.device)), seconds=0.01
    )
    again = json.loads(json.dumps(found.to_dict()))
    assert again["machine"] == found.machine
    assert again["models"][0]["latency"]["median"] == found["a"].latency.median
    assert again["models"][0]["macs"] == found["a"].macs
    assert again["models"][1]["latency"] is None


def test_a_masked_model_is_told_that_zeros_are_not_yet_made_use_of() -> None:
    dense, masked, shrunk = net(), net(), net()
    secateur.prune_(masked, sparsity=0.5)
    secateur.shrink_(shrunk, X, sparsity=0.5)
    found = profile({"dense": dense, "masked": masked, "shrunk": shrunk}, X, seconds=0)
    assert [bool(row.note) for row in found.rows] == [False, True, False]
    assert (found["masked"].bytes, found["masked"].macs) == (found["dense"].bytes, found["dense"].macs)
    assert found["shrunk"].parameters < found["dense"].parameters
    assert found["shrunk"].bytes < found["dense"].bytes


@pytest.mark.parametrize(
    ("models", "inputs", "options", "message"),
    [
        ({}, X, {}, "no model to profile"),
        (None, X, {}, "a model, or several by name"),
        ({"a": nn.ReLU().state_dict()}, X, {}, "models go by names"),
        ({1: nn.ReLU()}, X, {}, "models go by names"),
        (nn.ReLU(), "x", {}, "example inputs are"),
        (nn.ReLU(), X, {"seconds": -1}, "number of seconds"),
        (nn.ReLU(), X, {"seconds": float("inf")}, "number of seconds"),
        (nn.ReLU(), X, {"seconds": True}, "number of seconds"),
        (nn.ReLU(), X, {"threads": 0}, "positive integer"),
        (nn.ReLU(), X, {"threads": 1.0}, "positive integer"),
    ],
)
def test_what_cannot_be_profiled_is_refused(models: Any, inputs: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        profile(models, inputs, **options)


def test_a_lazy_model_is_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(UnsupportedError, match=r"'0.weight' of 'Sequential' is lazy"):
        profile(model, torch.randn(1, 2))
    assert isinstance(model[0], nn.LazyLinear)


def test_an_error_of_a_model_says_which_one_it_was_and_leaves_no_trace() -> None:
    good, bad = net().train(), nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        profile({"good": good, "bad": bad}, X, threads=2)
    assert "'bad'" in caught.value.__notes__[0]
    assert good.training
    assert torch.get_num_threads() == 1
