"""What a plan rests on is refused where it is no model, no coupling, or not the one of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from secateur import InvalidInputError, SecateurError, ShapeError
from secateur.graph import analyze
from secateur.shrink import (
    load_,
    measure_latency,
    plan_grow,
    plan_masked,
    plan_of,
    plan_shrink,
    save,
    shrink_,
    shrink_schedule,
)
from tests.shrink.models import is_unchanged, state_of

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def masks() -> dict[str, torch.Tensor]:
    return {"0.weight": torch.ones(6, 4, dtype=torch.bool).index_fill_(0, torch.tensor([1]), value=False)}


BY_COUPLING: dict[str, Callable[..., object]] = {
    "plan_shrink": lambda model, **given: plan_shrink(model, X, sparsity=0.5, **given),
    "plan_grow": lambda model, **given: plan_grow(model, X, growth=1.5, **given),
    "plan_masked": lambda model, **given: plan_masked(model, X, masks(), **given),
    "plan_shrink for masks": lambda model, **given: plan_shrink(model, X, masks=masks(), **given),
    "plan_of": lambda model, coupling: plan_of(model, coupling),
    "measure_latency": lambda model, coupling: measure_latency(model, coupling),
}

CALLS: dict[str, Callable[[Any], object]] = {
    "analyze": lambda model: analyze(model, X),
    "shrink_": lambda model: shrink_(model, X, sparsity=0.5),
    "shrink_schedule": lambda model: shrink_schedule(model, X, begin_step=1, end_step=9, final_sparsity=0.5),
    "save": lambda model: save(model, "nowhere"),
    "load_": lambda model: load_(model, mlp().state_dict()),
    "plan_shrink": lambda model: plan_shrink(model, X, sparsity=0.5),
    "plan_grow": lambda model: plan_grow(model, X, growth=1.5),
    "plan_masked": lambda model: plan_masked(model, X, masks()),
    "plan_of": lambda model: plan_of(model, analyze(mlp(), X)),
    "measure_latency": lambda model: measure_latency(model, analyze(mlp(), X)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "thing",
    [{}, None, torch.ones(3), [nn.Linear(2, 2)], "model", torch.relu],
    ids=["dict", "none", "tensor", "list", "string", "function"],
)
def test_what_is_no_model_is_refused(call: Callable[[Any], object], thing: Any) -> None:
    with pytest.raises(InvalidInputError, match="a module is needed"):
        call(thing)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_lazy_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(SecateurError, match=r"lazy|is not that of this model"):
        call(nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(2)))


@pytest.mark.parametrize("call", BY_COUPLING.values(), ids=BY_COUPLING)
def test_a_coupling_that_is_none_or_of_another_model_is_refused(call: Callable[..., object]) -> None:
    model = mlp()
    before = state_of(model)
    for wider in (nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)), nn.Sequential(mlp(), nn.Linear(2, 2))):
        with pytest.raises(ShapeError, match="the coupling is not that of this model as it is"):
            call(model, coupling=analyze(wider, X))
    with pytest.raises(InvalidInputError, match="a coupling is what analyze returns"):
        call(model, coupling="coupling")
    stale = analyze(model, X)
    assert is_unchanged(model, before)
    shrink_(model, X, sparsity=0.5)
    with pytest.raises(ShapeError, match=r"'0.weight' differs(?s:.*)then: 6 along dim 0    now: \(3, 4\)"):
        call(model, coupling=stale)


@pytest.mark.parametrize(
    "call", [call for name, call in BY_COUPLING.items() if "of" not in name and "measure" not in name]
)
def test_ignore_is_refused_beside_a_coupling(call: Callable[..., object]) -> None:
    model = mlp()
    with pytest.raises(InvalidInputError, match="has no effect on a coupling that is there already"):
        call(model, ignore="0", coupling=analyze(model, X))


@pytest.mark.parametrize("masks", [3, "masks", [torch.ones(6, 4, dtype=torch.bool)]], ids=repr)
def test_masks_without_names_are_refused(masks: Any) -> None:
    with pytest.raises(InvalidInputError, match="masks are bool tensors by names of parameters"):
        shrink_(mlp(), X, masks=masks)


@pytest.mark.parametrize("state", [{"model": {}}, {"0.weight": [1, 2]}], ids=repr)
def test_a_state_that_holds_no_tensors_is_refused(state: Any) -> None:
    model = mlp()
    before = state_of(model)
    with pytest.raises(ShapeError, match="does not fit"):
        load_(model, state)
    assert is_unchanged(model, before)
