"""A model cut to the sizes of another one."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from secateur import ShapeError, plan_shrink
from secateur.integrations.sizes import check_sizes, resize_to_, sizes_of
from tests.integrations.trainings import MODELS, X, build


def small(kind: str) -> nn.Module:
    model = build(kind)
    plan_shrink(model, X[:4], sparsity=0.5).apply_(model)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_fresh_model_takes_a_smaller_one_s_weights_afterwards(kind: str) -> None:
    cut, fresh = small(kind).eval(), build(kind).eval()
    names = {id(parameter): name for name, parameter in fresh.named_parameters()}
    resize_to_(fresh, sizes_of(cut))
    fresh.load_state_dict(cut.state_dict())
    assert torch.equal(fresh(X), cut(X))
    assert {id(parameter): name for name, parameter in fresh.named_parameters()} == names


@pytest.mark.parametrize("kind", MODELS)
def test_optimizer_and_average_follow(kind: str) -> None:
    fresh = build(kind)
    average = AveragedModel(fresh)
    optimizer = torch.optim.Adam(fresh.parameters())
    nn.functional.cross_entropy(fresh(X), torch.zeros(32, dtype=torch.long)).backward()
    optimizer.step()
    resize_to_(fresh, sizes_of(small(kind)), optimizer=optimizer, ema=average)
    for parameter, twin in zip(fresh.parameters(), average.module.parameters(), strict=True):
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape == twin.shape
    average.module(X)


def test_sizes_are_plain_but_for_buffers() -> None:
    sizes = sizes_of(small("attention"))
    assert list(sizes["buffers"]) == ["scale"]
    assert json.loads(json.dumps({**sizes, "buffers": {}})) == {**sizes, "buffers": {}}


def test_model_of_the_same_sizes_is_left_alone() -> None:
    model = build("attention")
    before = {name: id(value) for name, value in vars(model).items()}
    sizes = sizes_of(model)
    model.heads = 4
    resize_to_(model, sizes)
    assert {name: id(value) for name, value in vars(model).items()} == before


def test_sizes_of_another_architecture_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"(?s)'0\.weight' does not fit.*model: \(24, 16\)    checkpoint: no such"):
        check_sizes(build("perceptron"), sizes_of(build("attention")))


def test_sizes_of_a_larger_model_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"(?s)'0\.weight' does not fit.*model: \(12, 16\)    checkpoint: \(24, 16\)"):
        check_sizes(small("perceptron"), sizes_of(build("perceptron")))


def test_sizes_with_other_dims_are_refused() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    sizes = copy.deepcopy(sizes_of(other))
    sizes["shapes"]["weight"] = [4]
    with pytest.raises(ShapeError, match="does not fit"):
        check_sizes(model, sizes)
