"""Constants are seen where layers read them, and added to biases: in models, copies, dicts; and taken back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.shrink.folding import additions, bias_edits, observed, readers
from secateur.surgery.edits import carry_out


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_readers_are_linear_and_convolution_layers_with_plain_weights() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 4, 1), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Flatten()),
        *(nn.Linear(6, 5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 2))),
    )
    found = readers(model, analyze(model, torch.randn(1, 2, 3, 3)))
    assert [(r.path, r.weight, r.bias, r.groups) for r in found] == [
        ("0", "0.weight", "0.bias", 1),
        ("2", "2.weight", None, 2),
        ("4", "4.weight", "4.bias", 1),
    ]


@pytest.mark.parametrize(
    ("options", "pads"),
    [
        ({}, False),
        ({"padding": 1}, True),
        ({"padding": (0, 2)}, True),
        ({"padding": "valid"}, False),
        ({"padding": "same"}, True),
        ({"padding": 1, "padding_mode": "reflect"}, False),
    ],
)
def test_readers_know_which_layers_pad_with_zeros(options: dict[str, Any], pads: bool) -> None:
    model = nn.Conv2d(2, 4, 3, **options)
    assert readers(model, analyze(model, torch.randn(1, 2, 6, 6)))[0].pads is pads


def test_padding_to_the_same_size_pads_nothing_around_a_window_of_one() -> None:
    model = nn.Conv1d(2, 4, 1, padding="same")
    assert readers(model, analyze(model, torch.randn(1, 2, 6)))[0].pads is False


def test_observed_tells_constant_channels_over_batch_positions_and_calls() -> None:
    model = nn.Conv1d(3, 2, 1).double()
    several = readers(model, analyze(model, double(1, 3, 4)))
    x = double(2, 3, 5)
    x[:, 1] = 0.25
    with observed(model, several) as seen:
        model(x)
        assert seen[""].is_constant.tolist() == [False, True, False]
        x[:, 1] = 0.5
        model(input=x)
    assert seen[""].is_constant.tolist() == [False, False, False]
    assert seen[""].value[1] == 0.25
    assert not model._forward_pre_hooks


def test_observed_leaves_out_layers_that_are_not_called() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).double()
    several = readers(model, analyze(model, double(1, 2)))
    with observed(model, several) as seen:
        model[0](double(1, 2))
    assert list(seen) == ["0"]


@pytest.mark.parametrize("groups", [1, 2])
def test_additions_are_what_the_layer_makes_of_the_constant(groups: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 3, groups=groups)).double()
    coupling = analyze(model, double(1, 3, 5, 5))
    several, x = readers(model, coupling), double(2, 3, 5, 5)
    gone_positions = [1] if groups == 1 else [1, 3]
    units = set.intersection(*({*coupling.units_at("0.weight", 0, p)} for p in gone_positions))
    with torch.no_grad():
        model[0].weight[gone_positions] = 0.0
        with observed(model, several) as seen:
            model(x)
        gone = coupling.solution.removed([min(units)])
        found = additions(model, coupling, several, seen, gone)
        h = model[0](x)
        without = h.clone()
        without[:, gone_positions] = 0.0
        difference = model[1](h) - model[1](without)
    assert list(found) == ["1.bias"]
    torch.testing.assert_close(found["1.bias"][:, None, None].expand_as(difference[0]), difference[0])


def test_bias_edits_reach_model_copies_and_dicts_once_and_can_be_undone() -> None:
    model = nn.Linear(2, 3)
    twin, by_hand, alias = copy.deepcopy(model), {"bias": torch.zeros(3), "b": torch.zeros(3)}, model.state_dict()
    shared = dict.fromkeys(("bias", "b"), torch.zeros(3))
    before = model.bias.detach().clone()

    def edits() -> list[Any]:
        copies = [by_hand, alias, shared, {"else": 1}]
        return list(bias_edits([model, twin], copies, {"bias": torch.ones(3)}, {}, {"bias": ("b",)}))

    carry_out(edits())
    assert torch.equal(model.bias.detach(), before + 1)
    assert torch.equal(twin.bias.detach(), before + 1)
    assert by_hand["bias"].tolist() == by_hand["b"].tolist() == shared["b"].tolist() == [1.0] * 3

    class Failing:
        def do(self) -> None:
            raise RuntimeError("no")

        def undo(self) -> None:
            pass

    with pytest.raises(RuntimeError, match="no"):
        carry_out([*edits(), Failing()])
    assert torch.equal(model.bias.detach(), before + 1)
    assert torch.equal(twin.bias.detach(), before + 1)
    assert by_hand["bias"].tolist() == by_hand["b"].tolist() == shared["b"].tolist() == [1.0] * 3


def test_bias_edits_add_what_belongs_to_the_kept_positions() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias.zero_()
    kept = {"bias": {0: torch.tensor([0, 2])}}
    carry_out(bias_edits([model], [], {"bias": torch.tensor([1.0, 2.0, 3.0])}, kept, {}))
    assert model.bias.tolist() == [1.0, 3.0]
