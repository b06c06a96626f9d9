"""A plan to grow is a value: it compares, saves, applies once and to what it was made for, or changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secateur import InvalidInputError, ShapeError
from secateur.graph import analyze
from secateur.shrink import GrowPlan, ShrinkPlan, plan_grow, plan_of
from tests.shrink.growable import MODELS, built
from tests.shrink.models import is_unchanged, state_of


@pytest.mark.parametrize("init", ["default", "copy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_comes_back_from_its_file_and_does_the_same(name: str, init: Any, tmp_path: Path) -> None:
    model, x = built(name)
    plan = plan_grow(model, x, growth=1.5, init=init)
    plan.save(tmp_path / "plan.safetensors")
    loaded = GrowPlan.load(tmp_path / "plan.safetensors")
    assert loaded == plan
    assert repr(loaded) == repr(plan)
    assert (loaded.groups, loaded.freed, loaded.fit) == (plan.groups, plan.freed, plan.fit)
    grown, twin = plan.apply_(copy.deepcopy(model)), loaded.apply_(copy.deepcopy(model))
    assert grown.state_dict().keys() == twin.state_dict().keys()
    assert all(torch.equal(value, twin.state_dict()[key]) for key, value in grown.state_dict().items())
    assert torch.equal(twin(x), grown(x))
    before = state_of(twin)
    with pytest.raises(ShapeError, match="the plan does not fit"):
        loaded.apply_(twin)
    assert is_unchanged(twin, before)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_grows_a_bare_state_dict_as_it_grows_the_model(name: str) -> None:
    model, x = built(name)
    plan = plan_grow(model, x, growth=1.5)
    state = model.state_dict() | {"something.else": torch.ones(2)}
    before = {key: value.clone() for key, value in state.items()}
    grown = plan.apply_to(state)
    assert all(torch.equal(state[key], before[key]) for key in before)
    assert torch.equal(grown.pop("something.else"), torch.ones(2))
    plan.apply_(model)
    assert grown.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(grown[key], value), key
        assert (grown[key].dtype, grown[key].is_contiguous()) == (value.dtype, True)
    for wrong in (grown, {}):
        with pytest.raises(ShapeError, match="the plan does not fit"):
            plan.apply_to(wrong)


def test_plans_are_equal_when_they_do_the_same() -> None:
    model, x = built("mlp")
    plan = plan_grow(model, x, growth=1.5)
    assert plan == plan_grow(model, x, growth=1.5)
    assert plan != plan_grow(model, x, growth=1.5, seed=1)
    assert plan != plan_grow(model, x, growth=1.5, init="copy")
    assert plan != plan_grow(model, x, add={"0": 3})
    assert plan != "a plan"
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan)


def without_bias(model: Any) -> None:
    model.stem.bias = None


def with_bias(model: Any) -> None:
    model.a.bias = nn.Parameter(torch.zeros(6, dtype=torch.float64))


def with_another_norm(model: Any) -> None:
    model.norm = nn.GroupNorm(2, 8)


def with_another_kernel(model: Any) -> None:
    model.b = nn.Conv2d(6, 8, 1)


def with_a_lazy_layer(model: Any) -> None:
    model.head = nn.LazyLinear(5)


@pytest.mark.parametrize("change", [without_bias, with_bias, with_another_norm, with_another_kernel, with_a_lazy_layer])
def test_a_model_that_has_changed_since_the_plan_is_refused(change: Callable[[nn.Module], None]) -> None:
    model, x = built("cnn")
    plan = plan_grow(model, x, growth=1.5)
    change(model)
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(ShapeError, match="the plan does not fit"):
        plan.apply_(model)
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == before
    assert model.stem.out_channels == 8
    with pytest.raises(InvalidInputError, match="a module is needed"):
        plan.apply_(model.state_dict())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    model, x = built("mlp")
    plan_of(model, analyze(model, x), positions={("0.weight", 0): [1]}).save(tmp_path / "shrink.safetensors")
    plan_grow(model, x, growth=1.5).save(tmp_path / "grow.safetensors")
    (tmp_path / "text").write_text("no plan")
    for name in ("shrink.safetensors", "text"):
        with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur.GrowPlan|not a safetensors file"):
            GrowPlan.load(tmp_path / name)
    with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur.ShrinkPlan"):
        ShrinkPlan.load(tmp_path / "grow.safetensors")
