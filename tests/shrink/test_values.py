"""Models without values: planned for like others, and refused with a reason where values are needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from secateur import InvalidInputError, UnsupportedError, save
from secateur.graph import analyze
from secateur.shrink import (
    UNIT_SCORES,
    ShrinkPlan,
    measure_latency,
    plan_grow,
    plan_masked,
    plan_shrink,
    random,
    shrink_,
)

WITHOUT = {"fake": FakeTensorMode, "meta": lambda: torch.device("meta")}

without_values = pytest.mark.parametrize("mode", WITHOUT.values(), ids=WITHOUT)


def cnn() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return nn.Sequential(*layers), torch.zeros(2, 3, 8, 8)


@without_values
def test_a_plan_for_a_model_without_values_is_that_for_one_with_values(
    mode: Callable[[], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    with mode():
        plan = plan_shrink(*cnn(), sparsity=0.5, score=random)
        plan.save(tmp_path / "plan.safetensors")
    model, images = cnn()
    assert (
        plan == ShrinkPlan.load(tmp_path / "plan.safetensors") == plan_shrink(model, images, sparsity=0.5, score=random)
    )
    plan.apply_(model, tried_on=images)
    assert model(images).shape == (2, 4, 4, 4)


def test_a_model_on_the_meta_device_is_cut_and_a_fake_one_is_not() -> None:
    with torch.device("meta"):
        model, images = cnn()
        shrink_(model, images, sparsity=0.5, score=random)
    assert model[0].weight.shape == (4, 3, 3, 3)
    with FakeTensorMode():
        model, images = cnn()
        with pytest.raises(UnsupportedError, match="fake tensors cannot be changed"):
            shrink_(model, images, sparsity=0.5, score=random)
        assert model[0].weight.shape == (8, 3, 3, 3)


MASK = {"0.weight": torch.arange(8).bool()[:, None, None, None].expand(8, 3, 3, 3)}

NEEDING: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "plan_grow": lambda model, x: plan_grow(model, x, growth=1.5),
    "plan_masked": lambda model, x: plan_masked(model, x, MASK),
    "save": lambda model, x: save(model, "nowhere"),
    "measure_latency": lambda model, x: measure_latency(model, analyze(model, x)),
    "verify": lambda model, x: plan_shrink(model, x, sparsity=0.5, score=random).verify(model, x),
    "shrink_ with verify": lambda model, x: shrink_(model, x, sparsity=0.5, score=random, verify=True),
    **{
        name: lambda model, x, score=score: plan_shrink(model, x, sparsity=0.5, score=score)
        for name, score in UNIT_SCORES.items()
        if name not in ("random", "taylor", "fisher")  # those two need gradients, and say so
    },
}


@pytest.mark.parametrize("call", NEEDING.values(), ids=NEEDING)
@without_values
def test_what_needs_values_says_so_and_changes_nothing(
    mode: Callable[[], AbstractContextManager[Any]], call: Callable[[nn.Module, Tensor], object]
) -> None:
    with mode():
        model, images = cnn()
        with pytest.raises(InvalidInputError, match="needs values, and the model has none"):
            call(model, images)
    assert model[0].weight.shape == (8, 3, 3, 3)
