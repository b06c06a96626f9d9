"""New units leave what a model computes as it is, train from then on, and can be removed again without a trace.

The oracle is the model before it grew, on inputs that the planning has not seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError
from secateur.graph import analyze
from secateur.shrink import GrowPlan, plan_grow, plan_of
from tests.shrink.growable import MODELS, Called, built, double
from tests.shrink.models import Attention, is_unchanged, randomized, state_of


def computes_the_same(one: nn.Module, other: nn.Module, x: Tensor) -> None:
    for mode in (False, True):
        a, b = copy.deepcopy(one).train(mode), copy.deepcopy(other).train(mode)
        for inputs in (x, torch.randn_like(x), 10 * torch.randn_like(x)):
            expected = a(inputs).detach()
            atol = 1e-12 * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(b(inputs).detach(), expected, rtol=0, atol=atol)


def stepped(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def removed_again(model: nn.Module, plan: GrowPlan, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Remove the new units by an analysis of their own."""
    coupling = analyze(model, x)
    positions = {(name, dim): at.tolist() for name, dims in plan.at.items() for dim, at in dims.items()}
    units = [
        unit
        for group in coupling.groups
        for unit in group.units
        if all(
            set(np.nonzero(~kept)[0]) <= set(positions.get(place, ()))
            for place, kept in coupling.positions([unit]).items()
        )
    ]
    plan_of(model, coupling, units).apply_(model, optimizer=optimizer)


@pytest.mark.parametrize("init", ["default", "copy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_larger_model_computes_the_same_and_all_of_it_trains(name: str, init: Any) -> None:
    model, x = built(name)
    plan = plan_grow(model, x, growth=1.5, init=init)
    assert any(group.after > group.before for group in plan.groups)
    grown = plan.apply_(copy.deepcopy(model))
    computes_the_same(model, grown, x)
    for attribute, value in MODELS[name][2].items():
        path, _, leaf = attribute.rpartition(".")
        assert getattr(grown.get_submodule(path), leaf) == value, attribute
    optimizer = torch.optim.SGD(grown.train().parameters(), lr=1e-4)
    for _ in range(2):  # what reads new units has a gradient at once, the units themselves when they are read
        stepped(grown, x, optimizer)
    for tensor, dims in plan.at.items():
        if tensor not in dict(grown.named_parameters()):
            continue
        for dim, at in dims.items():
            gradient = grown.get_parameter(tensor).grad
            if "bias" not in tensor or name not in ("depthwise", "cnn"):  # BatchNorm takes the mean off
                assert gradient is not None
                assert bool(gradient.index_select(dim, at).any()), (tensor, dim)


@pytest.mark.parametrize("name", MODELS)
def test_growing_and_shrinking_again_gives_the_original_bit_for_bit(name: str) -> None:
    model, x = built(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stepped(model, x, optimizer)
    original, old_state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    plan = plan_grow(model, x, growth=1.5)
    parameters = list(model.parameters())
    plan.apply_(model, optimizer=optimizer)
    for tensor, dims in plan.at.items():
        for dim, at in dims.items():
            state = optimizer.state.get(dict(model.named_parameters()).get(tensor), {})
            assert not any(bool(v.index_select(dim, at).any()) for k, v in state.items() if k != "step"), tensor
    removed_again(model, plan, x, optimizer)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    for (key, now), (_, before) in zip(model.state_dict().items(), original.state_dict().items(), strict=True):
        assert torch.equal(now, before), key
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            assert torch.equal(value, old_state["state"][number][key])
    assert torch.equal(model(x), original(x)) or name == "multihead"  # whose heads are computed in another order
    torch.testing.assert_close(model(x), original(x), rtol=0, atol=1e-12)


# What grows -----------------------------------------------------------------------------------------------------------


def test_names_and_numbers_say_which_groups_grow() -> None:
    model, x = built("mlp")
    assert [g.after for g in plan_grow(model, x, add={"0": 4}).groups] == [10, 5]
    assert [g.after for g in plan_grow(model, x, add={"*.weight[1]": 2}, ignore=["0"]).groups] == [7]
    assert [g.after for g in plan_grow(model, x, add={"2.weight[1]": 1, "2.bias": 3}).groups] == [7, 8]
    assert [g.after for g in plan_grow(model, x, add={1: 2}).groups] == [6, 7]
    assert [g.after for g in plan_grow(model, x, growth=1.2).groups] == [7, 6]


def test_a_plan_prints_what_grows_and_what_does_not() -> None:
    torch.manual_seed(0)
    model = randomized(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert repr(plan_grow(model, double(3, 4), growth=1.5)).splitlines() == [
        "GrowPlan: parameters 116 -> 152",
        "  0.weight[0]  neurons         6 ->      6",
        "  2.weight[0]  neurons         8 ->     12",
        "  does not grow: 0.weight[0]: an op mixes its units with one another (a norm, a softmax)",
    ]


@pytest.mark.parametrize(
    ("make", "shape", "add", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)), (3, 4), {"0": 1}, "mixes its units"),
        (
            lambda: Attention(12, 3, lambda a: a.head_dim**-0.5),
            (2, 5, 12),
            {"q": 1},
            "cross those of another group that grows",
        ),
        (
            lambda: Called(lambda s, x: s.a(x).square().sum(1), a=nn.Linear(4, 6)),
            (3, 4),
            {"a": 1},
            "could only begin at zero everywhere",
        ),
        (
            lambda: Called(lambda s, x: s.a(x).prod(1), a=nn.Linear(4, 6)),
            (3, 4),
            {"a": 1},
            "mixes its units",
        ),
        (
            lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 2)),
            (3, 4),
            {"1.weight[1]": 1},
            "the larger model cannot be made",
        ),
    ],
    ids=["norm", "crossing", "sum of squares", "product", "spectral norm"],
)
def test_what_cannot_grow_soundly_is_refused_with_the_reason(
    make: Callable[[], nn.Module], shape: tuple[int, ...], add: Any, why: str
) -> None:
    torch.manual_seed(0)
    model = randomized(make())
    before = state_of(model)
    with pytest.raises((UnsupportedError, InvalidInputError), match=why):
        plan_grow(model, double(*shape), add=add)
    assert is_unchanged(model, before)


def test_heads_grow_wider_with_keys_that_begin_at_zero_and_the_old_scale() -> None:
    torch.manual_seed(0)
    model, x = randomized(Attention(12, 3, lambda a: a.head_dim**-0.5)), double(2, 5, 12)
    coupling = analyze(model, x)
    (number,) = [n for n, group in enumerate(coupling.groups) if group.kind == "head dims"]
    plan = plan_grow(model, x, add={number: 2}, coupling=coupling)
    grown = plan.apply_(copy.deepcopy(model))
    computes_the_same(model, grown, x)
    assert (grown.num_heads, int(grown.head_dim), grown.head_dim**-0.5) == (3, 6, 0.5)
    assert plan.at["q.weight"][0].tolist() == [4, 5, 10, 11, 16, 17]
    new = plan.at["q.weight"][0]
    assert bool(grown.q.weight[new].any())
    assert not bool(grown.k.weight[new].any())
    optimizer = torch.optim.SGD(grown.parameters(), lr=1e-4)
    for _ in range(2):
        stepped(grown, x, optimizer)
    for layer, dim in ((grown.q, 0), (grown.k, 0), (grown.v, 0), (grown.o, 1)):
        assert bool(layer.weight.grad.index_select(dim, new).any())


def test_arguments_that_mean_nothing_are_refused() -> None:
    model, x = built("mlp")
    wrong: dict[str, dict[str, Any]] = {
        "give either add=… or growth=…": {},
        "give either add=… or growth=….": {"add": {"0": 1}, "growth": 2.0},
        "above 1": {"growth": 1.0},
        "above 1.": {"growth": math.inf},
        "at least 1": {"add": {"0": 0}},
        "at least 1.": {"add": {"0": 1.5}},
        "matches no parameter": {"add": {"seven": 1}},
        "'4' means no group of units along dim 0": {"add": {"4": 1}},
        "no group of this number": {"add": {7: 1}},
        "ask for different numbers": {"add": {"0": 1, "0.weight": 2}},
        "how many times as many": {"growth": "2"},
        "no group would get a unit": {"growth": 1.01},
        "says which groups grow": {"add": ["0"]},
        "says which groups grow, and": {"add": {}},
        "init is 'default' or 'copy'": {"growth": 1.5, "init": "zeros"},
        "seed is a whole number": {"growth": 1.5, "seed": "a"},
        "has no effect on a coupling": {"growth": 1.5, "ignore": "0", "coupling": analyze(model, x)},
    }
    for match, arguments in wrong.items():
        with pytest.raises(InvalidInputError, match=match):
            plan_grow(model, x, **arguments)
    with pytest.raises(InvalidInputError, match=r"nothing in Linear can grow(?s:.*)input of the model"):
        plan_grow(nn.Linear(4, 2), torch.randn(3, 4), growth=2.0)


# Values ---------------------------------------------------------------------------------------------------------------


def test_new_units_begin_as_their_layers_do() -> None:
    model, x = built("cnn")
    plan = plan_grow(model, x, add={"stem": 200})
    grown = plan.apply_(copy.deepcopy(model))
    bound = 1 / math.sqrt(3 * 9)
    new = grown.stem.weight.detach()[8:]
    assert float(new.abs().max()) <= bound
    assert float(new.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not bool(grown.a.weight[:, 8:].any())
    assert grown.norm.weight[8:].tolist() == [1.0] * 200
    assert grown.norm.bias[8:].tolist() == [0.0] * 200
    assert grown.norm.running_mean[8:].tolist() == [0.0] * 200
    assert grown.norm.running_var[8:].tolist() == [1.0] * 200


def test_copies_resemble_units_in_turn_from_the_last_one_backwards() -> None:
    model, x = built("cnn")
    grown = plan_grow(model, x, add={"stem": 2}, init="copy").apply_(copy.deepcopy(model))
    old, new = model.stem.weight.detach(), grown.stem.weight.detach()
    assert torch.equal(new[:8], old)
    for number, unit in ((8, 7), (9, 6)):
        difference = float((new[number] - old[unit]).abs().max())
        assert 0 < difference < 0.25 * float(old.std())
        assert grown.norm.running_var[number] == model.norm.running_var[unit]
        assert grown.head.weight[:, 4 * number : 4 * number + 4].tolist() == [[0.0] * 4] * 5


def test_values_depend_on_the_seed_alone_and_the_random_state_is_left_alone() -> None:
    model, x = built("mlp")
    found = []
    for state, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        found.append(plan_grow(model, x, growth=1.5, seed=seed).values["0.weight"][0])
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# A live run -----------------------------------------------------------------------------------------------------------


def test_optimizer_masks_and_averages_follow_and_training_goes_on() -> None:
    model, x = built("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mask = torch.rand(5, 6) < 0.5
    masks = Masks.from_dict(model, {"2.weight": mask}, optimizer)
    stepped(model, x, optimizer)
    average, by_hand = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    new = double(8, 4)
    expected = model(new).detach()
    plan_grow(model, x, growth=1.5).apply_(model, optimizer=optimizer, ema=[average, by_hand])
    torch.testing.assert_close(model(new), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(average(new), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(by_hand[n], p) for n, p in model.named_parameters())
    assert torch.equal(masks["2.weight"][:5, :6], mask)
    assert bool(masks["2.weight"][5:].all())
    for _ in range(3):
        stepped(model, x, optimizer)
    assert bool((model[2].weight[~masks["2.weight"]] == 0).all())
    assert bool(model[2].weight[:, 6:].any())


def test_nothing_has_changed_when_something_cannot_follow_and_plans_apply_once() -> None:
    model, x = built("heads")
    plan = plan_grow(model, x, growth=1.5)
    before = state_of(model)
    with pytest.raises(HolderError):
        plan.apply_(model, ema={"q.weight": torch.ones(2, 2)})
    assert is_unchanged(model, before)
    assert model.num_heads == 3
    plan.apply_(model)
    before = state_of(model)
    with pytest.raises(ShapeError, match=r"the plan does not fit: 'q.weight'(?s:.*)found: \(16, 12\)"):
        plan.apply_(model)
    assert is_unchanged(model, before)


def test_example_inputs_need_no_variety_to_grow() -> None:
    torch.manual_seed(0)
    model = randomized(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    ids = torch.zeros(2, 3, dtype=torch.long)
    plan = plan_grow(model, ids, growth=2.0)
    grown = plan.apply_(copy.deepcopy(model))
    assert grown[0].embedding_dim == 8
    ids = torch.arange(5)[None]
    torch.testing.assert_close(grown(ids), model(ids), rtol=0, atol=1e-12)
