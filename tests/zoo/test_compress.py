"""The sampled models of the catalogue, masked at random and compressed: the same outputs, whatever was packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.graph.capture import tensors_in
from secateur.graph.trace import call_with
from secateur.runtime import compressing
from secateur.runtime.layers import SparseLayer
from tests.zoo.catalogue import entries
from tests.zoo.test_zoo import SAMPLE

SPARSITY = 0.8


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models on a busy machine: what is tested is that packed layers compute the same."""
    monkeypatch.setattr(compressing, "run_seconds", lambda *_: {"dense": 2.0, "fast": 1.0})


def masked(model: nn.Module) -> nn.Module:
    """A model that has lost a random share of the weights of its layers."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.MultiheadAttention)]
    weights = {id(p): p for layer in layers for p in layer.parameters(recurse=False) if p.dim() > 1}
    with torch.no_grad():
        for weight in weights.values():
            weight.mul_(torch.rand_like(weight) >= SPARSITY)
    return model


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """The floating-point tensors that a model returns."""
    torch.manual_seed(0)
    with torch.inference_mode():
        return [tensor for tensor in tensors_in(call_with(model, inputs)) if tensor.is_floating_point()]


@pytest.mark.parametrize("key", dict.fromkeys(SAMPLE))
@pytest.mark.usefixtures("always_faster")
def test_a_compressed_model_computes_what_the_masked_one_does(key: str) -> None:
    entry = next(entry for entry in entries() if entry.key == key)
    torch.manual_seed(0)
    model = masked(entry.build().eval()).float()
    inputs = _in(torch.float32, entry.inputs(model))
    fast = secateur.compress(model, inputs, margin=-1e9)
    assert any(isinstance(module, SparseLayer) for module in fast.modules()), str(fast.report)
    for one, other in zip(outputs(model, inputs), outputs(fast, inputs), strict=True):
        assert torch.allclose(other, one, rtol=1e-4, atol=1e-5 * float(one.abs().max()))


def _in(dtype: torch.dtype, inputs: Any) -> Any:
    """Example inputs in another precision."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: _in(dtype, value) for name, value in inputs.items()}
    return tuple(_in(dtype, value) for value in inputs) if isinstance(inputs, tuple) else inputs
