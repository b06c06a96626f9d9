"""What methods of sparse training refuse, and that nothing has been changed then."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from secateur import HolderError, InfeasibleError, InvalidInputError, Masks, UnsupportedError, patterns
from secateur.dst import Gradual, GraNet, RigL, Static
from tests.dst.methods import flat, make, net, step
from tests.masks.oracles import is_zero, snapshot


def refused(error: type[Exception], match: str, model: nn.Module, attach: Any) -> None:
    before = snapshot(model)
    with pytest.raises(error, match=match):
        attach()
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"begin_step": 20}, "stop to change before they begin"),
        ({"every": 11}, "never change"),
        ({"drop_fraction": 2.0}, "drop_fraction must be"),
        ({"every": 0}, "every must be"),
        ({"sparsity": 1.0}, "sparsity must be"),
        ({"sparsity": math.nan}, "sparsity must be"),
        ({"include": "nothing.*"}, "matches no parameter"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], match: str) -> None:
    model = net()
    refused(
        InvalidInputError, match, model, lambda: RigL(model, **{"sparsity": 0.5, "every": 2, "end_step": 10, **options})
    )


@pytest.mark.parametrize("method", [GraNet, Gradual])
def test_sparsity_that_falls_is_refused(method: Any) -> None:
    model = net()
    refused(
        InvalidInputError,
        "sparsity may only rise",
        model,
        lambda: method(model, sparsity=0.2, initial_sparsity=0.5, every=2, end_step=10),
    )


def test_optimizer_that_does_not_hold_the_weights_is_refused() -> None:
    model, other = net(), net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    refused(HolderError, "holds no parameter", model, lambda: make("rigl", model, optimizer))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    refused(HolderError, r"holds '2\.weight'", model, lambda: make("rigl", model, optimizer))


def test_second_method_on_the_same_model_is_refused_until_the_first_is_removed() -> None:
    model = net()
    first = make("set", model)
    refused(HolderError, "in the hands of SET already", model, lambda: make("rigl", model))
    first.remove()
    first.masks.remove()
    make("rigl", model)


def test_frozen_weights_that_would_be_grown_are_refused() -> None:
    model = net()
    model[2].weight.requires_grad_(False)
    refused(InvalidInputError, r"'2\.weight' is frozen", model, lambda: make("rigl", model))
    make("rigl", model, exclude="2.*")


def test_frozen_weights_may_have_masks_that_only_lose() -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    training = make("gradual", model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(9):
        step(model, optimizer)
    assert training.masks.num_zeros() == 50


def test_units_of_n_to_m_cannot_be_exchanged() -> None:
    model = nn.Linear(8, 8)
    pattern = patterns.NM(2, 4)
    refused(
        UnsupportedError,
        r"NM\(n=2, m=4, dim=1\) cannot be exchanged one by one",
        model,
        lambda: make("rigl", model, pattern=pattern),
    )
    assert Static(model, sparsity=0.5, pattern=pattern).masks.num_zeros() == 32


def test_allocation_that_cannot_be_met_is_refused() -> None:
    model = net()
    refused(InfeasibleError, "keep 1 in each", model, lambda: make("rigl", model, sparsity=0.999))


@pytest.mark.parametrize("method", ["rigl", "granet", "mest"])
def test_step_without_a_backward_pass_is_told_and_leaves_masks_as_they_are(method: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make(method, model, optimizer)
    step(model, optimizer)
    before = flat(training)
    with pytest.raises(InvalidInputError, match=r"needs gradients, and no backward(.|\n)*step: 2"):
        optimizer.step()
    assert torch.equal(flat(training), before)
    for _ in range(2):
        step(model, optimizer)
    assert training.history[-1].step == 4


@pytest.mark.parametrize("where", ["kept", "masked"])
def test_nan_gradient_is_told_by_name_and_leaves_masks_as_they_are(where: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer)
    step(model, optimizer)
    mask = training.masks["0.weight"]
    before = flat(training)
    place = mask if where == "kept" else ~mask
    model[0].weight.register_hook(lambda slope: slope.masked_fill(place, math.nan))
    with pytest.raises(InvalidInputError, match=r"the scores of '0\.weight': some are NaN"):
        step(model, optimizer)
    assert torch.equal(flat(training), before)
    assert is_zero(model[0].weight.detach()[~mask])


def test_state_of_another_method_or_model_is_refused() -> None:
    model = net()
    training = make("rigl", model)
    state = training.state_dict()
    its = make("set", net())
    before = snapshot(its.model)
    with pytest.raises(InvalidInputError, match=r"no state of SET(.|\n)*method: RigL"):
        its.load_state_dict(state)
    other = make("rigl", nn.Linear(6, 6))
    with pytest.raises(InvalidInputError, match="no mask for 'weight'"):
        other.load_state_dict(state)
    with pytest.raises(InvalidInputError, match="no state of RigL"):
        other.load_state_dict({"step": 3})
    assert snapshot(its.model) == before
    assert other.step == 0


def test_a_curve_that_is_a_name_is_refused_and_told_which_there_are() -> None:
    model = nn.Linear(8, 8)
    with pytest.raises(InvalidInputError, match=r"a curve is a function") as caught:
        Gradual(model, sparsity=0.5, end_step=100, curve="cubic")
    assert "secateur.schedules.cubic" in str(caught.value)
    assert len(Masks(model)) == 0
