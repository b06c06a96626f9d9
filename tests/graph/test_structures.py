"""Removing units from every kind of structure equals zeroing them, and each has as many units as it should."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.graph.capture import tensors_in
from secateur.graph.coupling import Coupling, analyze
from tests.graph.attentions import ATTENTIONS
from tests.graph.cutter import cut_, exact_units, reasons, some, units, zeroed
from tests.graph.more_variants import MORE_VARIANTS
from tests.graph.structures import STRUCTURES, Structure
from tests.graph.variants import VARIANTS

ALL = {**STRUCTURES, **ATTENTIONS, **VARIANTS, **MORE_VARIANTS}

SEEDS = range(3)


def made(structure: Structure) -> tuple[nn.Module, tuple[Any, ...]]:
    model = structure.make().double().eval()
    inputs = (torch.randn(shape).double() if isinstance(shape, tuple) else shape for shape in structure.inputs)
    return model, tuple(inputs)


def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            return tensors_in(model(*(x.clone() for x in inputs)))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def moved(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_structure_has_its_units(name: str) -> None:
    model, inputs = made(ALL[name])
    coupling = analyze(model, inputs)
    assert (len(units(coupling)), len(exact_units(coupling))) == (ALL[name].units, ALL[name].exact)
    for part in ALL[name].why:
        assert any(part in why for why in reasons(coupling)), reasons(coupling)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, structure in ALL.items() if structure.exact])
def test_structure_without_units_equals_the_zeroed_one(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    model, inputs = made(ALL[name])
    coupling = analyze(model, inputs)
    gone = some(coupling, exact_units(coupling), seed)
    reference = zeroed(model, coupling, gone, ALL[name].not_zeroed)
    before, wanted = outputs(model, inputs), outputs(reference, inputs)
    assert gone
    assert moved(before, wanted) > 1e-3
    cut_(model, coupling, gone)
    for found, right in zip(outputs(model, inputs), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, structure in ALL.items() if structure.units and structure.trains])
def test_structure_without_units_still_trains(name: str) -> None:
    model, inputs = made(ALL[name])
    coupling = analyze(model, inputs)
    shapes = [tensor.shape for tensor in outputs(model, inputs)]
    before = sum(parameter.numel() for parameter in model.parameters())
    cut_(model, coupling, some(coupling, units(coupling), seed=0))
    assert sum(parameter.numel() for parameter in model.parameters()) < before
    result = tensors_in(model(*inputs))
    assert [tensor.shape for tensor in result] == shapes
    sum(tensor.square().mean() for tensor in result).backward()
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())


@pytest.mark.parametrize("name", ["lstm", "lstm_of_two_layers_and_directions"])
def test_recurrent_layer_that_runs_as_one_op_has_the_same_units(name: str) -> None:
    model, (x,) = made(ALL[name])
    coupling = analyze(model.float(), x.float())
    assert len(units(coupling)) == ALL[name].units
    gone = some(coupling, units(coupling), seed=0)
    wanted = outputs(zeroed(model, coupling, gone), (x.float(),))
    cut_(model, coupling, gone)
    torch.testing.assert_close(outputs(model, (x.float(),)), wanted, rtol=1e-4, atol=1e-5)


def test_analysis_leaves_the_model_alone() -> None:
    model, inputs = made(ALL["in_place_slice_writes"])
    state = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    kept = inputs[0].clone()
    coupling = analyze(model, inputs)
    assert isinstance(coupling, Coupling)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}
    assert torch.equal(inputs[0], kept)
