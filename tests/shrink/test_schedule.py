"""Gradual shrinking: exactly what is asked for, at the steps asked for, and training goes on as if nothing were odd."""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import secateur
from secateur import Budget, InvalidInputError, UnsupportedError, shrink, shrink_schedule
from secateur.graph import Coupling, analyze
from secateur.schedules import Ramp, cubic, linear
from tests.shrink.models import Attention, SmallCNN, is_unchanged, state_of

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(4, widths[0]), nn.ReLU()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 2))


def widths_of(model: nn.Sequential) -> list[int]:
    return [layer.out_features for layer in model if isinstance(layer, nn.Linear)][:-1]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


@settings(max_examples=20)
@given(
    widths=st.lists(st.integers(5, 40), min_size=1, max_size=3),
    begin=st.integers(1, 4),
    span=st.integers(0, 9),
    cuts=st.integers(1, 6),
    final=st.floats(0.05, 0.9),
    curve=st.sampled_from([cubic, linear]),
)
def test_every_group_has_lost_exactly_its_share_after_every_cut(
    widths: list[int], begin: int, span: int, cuts: int, final: float, curve: Any
) -> None:
    model, x = mlp(*widths), torch.randn(3, 4)
    cuts = min(cuts, span + 1)
    make = partial(shrink_schedule, model, x, begin_step=begin, end_step=begin + span, final_sparsity=final)
    if not any(round(final * width) for width in widths):
        with pytest.raises(InvalidInputError, match="nothing would be removed"):
            make(num_cuts=cuts, curve=curve)
        return
    schedule = make(num_cuts=cuts, curve=curve)
    made = 0
    for step in range(1, begin + span + 3):
        plan = schedule.step()
        made += plan is not None
        way = made / cuts
        gone = final * (1 - (1 - way) ** 3 if curve is cubic else way)
        # the planner's rule: at least two units stay
        assert widths_of(model) == [max(2, width - round(gone * width)) for width in widths]
        assert (plan is None) == (step not in schedule.cuts)
    assert made == cuts == len(schedule.plans)
    first, *_, last = [*schedule.cuts, *schedule.cuts]
    assert first == begin
    assert last == (begin + span if cuts > 1 else begin)


def test_a_cut_removes_the_units_with_the_lowest_scores_of_that_moment() -> None:
    model, x = mlp(12), torch.randn(3, 4)
    wanted = np.arange(12)[::-1].copy()

    def by_name(model: nn.Module, coupling: Coupling) -> np.ndarray:
        (group,) = coupling.groups
        scores = np.full(len(coupling.solution.parents), np.nan)
        scores[list(group.units)] = wanted
        return scores

    with torch.no_grad():
        model[0].bias.copy_(torch.arange(12.0))
    schedule = shrink_schedule(model, x, begin_step=1, end_step=2, final_sparsity=0.5, num_cuts=2, score=by_name)
    schedule.step()
    left = model[0].bias.detach().int().tolist()
    assert left == list(range(12 - round(0.5 * 12 * (1 - 0.5**3))))
    wanted = np.arange(len(left))
    schedule.step()
    assert model[0].bias.detach().int().tolist() == left[-6:]


def test_plans_replayed_on_a_copy_give_the_same_model() -> None:
    model = SmallCNN()
    twin = copy.deepcopy(model)
    schedule = shrink_schedule(model, IMAGES, begin_step=1, end_step=3, final_sparsity=0.6, num_cuts=3)
    for _ in range(3):
        schedule.step()
    for plan in schedule.plans:
        plan.apply_(twin)
    assert all(torch.equal(tensor, twin.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(IMAGES), twin(IMAGES))


def test_optimizer_average_and_masks_follow_every_cut() -> None:
    model = SmallCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = AveragedModel(model)
    masks = secateur.prune_(model, optimizer, sparsity=0.5)
    parameters = {name: id(p) for name, p in model.named_parameters()}
    schedule = shrink_schedule(
        model, IMAGES, begin_step=2, end_step=5, final_sparsity=0.5, num_cuts=3, optimizer=optimizer, ema=ema
    )
    for _ in range(7):
        train_step(model, optimizer, IMAGES)
        ema.update_parameters(model)
        schedule.step()
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    for name, p in model.named_parameters():
        assert optimizer.state[p]["exp_avg"].shape == optimizer.state[p]["exp_avg_sq"].shape == p.shape
        assert float(optimizer.state[p]["step"]) == 7
        assert ema.module.get_parameter(name).shape == p.shape
    assert all(masks[name].shape == model.get_parameter(name).shape for name in masks)
    assert not any(model.get_parameter(name)[~masks[name]].any() for name in masks)
    assert (model.stem.out_channels, model.a.out_channels) == (4, 3)


def test_a_training_with_cuts_of_dead_units_goes_the_same_way() -> None:
    torch.manual_seed(3)
    model = mlp(8).double()
    with torch.no_grad():
        for dead in (1, 4, 5, 6):
            for tensor in (model[0].weight[dead], model[0].bias[dead : dead + 1], model[2].weight[:, dead]):
                tensor.zero_()
    twin = copy.deepcopy(model)
    x = torch.randn(6, 4, dtype=torch.float64)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in (model, twin)]
    schedule = shrink_schedule(
        model, x, begin_step=3, end_step=6, final_sparsity=0.5, num_cuts=2, optimizer=optimizers[0]
    )
    for _ in range(10):
        train_step(model, optimizers[0], x)
        train_step(twin, optimizers[1], x)
        schedule.step()
    assert model[0].out_features == 4
    torch.testing.assert_close(model(x), twin(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("budget", [Budget(macs=0.4), Budget(params=0.5), Budget(macs=0.6, params=0.3)])
def test_budgets_are_met_bit_by_bit(budget: Budget) -> None:
    model = SmallCNN().train()
    whole = analyze(model, IMAGES)
    schedule = shrink_schedule(model, IMAGES, begin_step=1, end_step=4, budget=budget, num_cuts=4)
    for cut in range(1, 5):
        schedule.step()
        now = analyze(model, IMAGES)
        way = 1 - (1 - cut / 4) ** 3
        for share, cost, costs in ((budget.macs, now.macs(), whole.macs()),
                                   (budget.params, now.num_parameters(), whole.num_parameters())):  # fmt: skip
            if share is not None:
                assert cost <= (1 - (1 - share) * way) * costs + 1e-6


def test_kept_units_are_multiples_if_asked() -> None:
    model, x = mlp(40, 24), torch.randn(3, 4)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=3, num_cuts=3, final_sparsity=0.6, round_to=8)
    seen = []
    for _ in range(3):
        schedule.step()
        seen.append(widths_of(model))
    # 40 and 24 less 60 % of 19/27, 26/27 and 27/27, each to the nearest multiple of 8
    assert seen == [[24, 16], [16, 8], [16, 8]]


def test_a_cut_that_comes_to_no_whole_multiple_takes_nothing_and_the_next_ones_make_up_for_it() -> None:
    torch.manual_seed(0)
    model, x = mlp(16), torch.randn(2, 4)
    schedule = shrink_schedule(
        model, x, begin_step=1, end_step=4, num_cuts=4, final_sparsity=0.5, round_to=8, curve=linear
    )
    widths = []
    for _ in range(4):
        plan = schedule.step()
        assert plan is not None
        widths += widths_of(model)
    # 2, 4, 6 and 8 of 16 units are to be gone, and what is left is the nearest multiple of 8, of two the larger
    assert widths == [16, 16, 8, 8]


def test_gradient_scores_read_the_step_just_made() -> None:
    model, x = mlp(10), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = shrink_schedule(
        model, x, begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5, score=shrink.taylor, optimizer=optimizer
    )
    train_step(model, optimizer, x)
    coupling = analyze(model, x)
    expected = shrink.taylor(model, coupling)[list(coupling.groups[0].units)].argsort()[5:]
    plan = schedule.step()
    assert plan.keep["0.weight"][0].tolist() == sorted(expected.tolist())


def test_scores_that_run_the_model_work_in_every_cut() -> None:
    model, x = SmallCNN(), IMAGES
    score = shrink.over_batches(shrink.fisher, lambda m, b: m(b).square().mean(), [x])
    schedule = shrink_schedule(model, x, begin_step=1, end_step=3, num_cuts=3, final_sparsity=0.5, score=score)
    for _ in range(3):
        schedule.step()
    assert [group.after for group in schedule.plans[-1].groups] == [4, 3]


def test_heads_and_their_columns_are_counted_apart() -> None:
    model, x = Attention(24, 4, lambda a: a.head_dim**-0.5), torch.randn(2, 5, 24)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=2, num_cuts=2, final_sparsity=0.5)
    for _ in range(2):
        schedule.step()
    assert (model.num_heads, model.head_dim) == (2, 3)
    assert model(x).shape == (2, 5, 24)


# ---- resuming


def resumable(model: nn.Module, optimizer: object = None, **more: object) -> shrink.ShrinkSchedule:
    arguments = {"begin_step": 2, "end_step": 8, "num_cuts": 4, "optimizer": optimizer, **more}
    return shrink_schedule(model, IMAGES, **arguments)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


TARGETS = {"units": {"final_sparsity": 0.7}, "costs": {"budget": Budget(params=0.3)}}
STATE = {"num_steps": 3, "whole": {}, "left": 4, "shapes": {}, "latency_table": None}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_cut_first", [True, False], ids=["on a smaller model", "on a model of the full size"])
@pytest.mark.parametrize("stop", [1, 2, 3, 5, 8, 9])
def test_a_resumed_training_goes_the_same_way(stop: int, is_cut_first: bool, target: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = SmallCNN()
    optimizer = sgd(model)
    schedule = resumable(model, optimizer, **TARGETS[target])
    for step in range(1, 11):
        train_step(model, optimizer, IMAGES)
        schedule.step()
        if step == stop:
            secateur.save(model, tmp_path / "model.safetensors")
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            written = json.dumps(schedule.state_dict())

    again = SmallCNN()
    if is_cut_first:
        secateur.load_(again, tmp_path / "model.safetensors")
        its_optimizer = sgd(again)
        its_schedule = resumable(again, its_optimizer, state=json.loads(written), **TARGETS[target])
    else:
        its_optimizer = sgd(again)
        its_schedule = resumable(again, its_optimizer, **TARGETS[target])
        secateur.load_(again, tmp_path / "model.safetensors", optimizer=its_optimizer)
        its_schedule.load_state_dict(json.loads(written))
    its_optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for _ in range(stop, 10):
        train_step(again, its_optimizer, IMAGES)
        its_schedule.step()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert its_schedule.state_dict() == schedule.state_dict()
    assert repr(its_schedule) == repr(schedule)
    if target == "costs":
        assert analyze(again, IMAGES).num_parameters() <= 0.3 * analyze(SmallCNN(), IMAGES).num_parameters()


def test_a_state_for_another_model_or_target_is_refused() -> None:
    small, whole = SmallCNN(), SmallCNN()
    schedule = resumable(small, final_sparsity=0.7)
    for _ in range(3):
        schedule.step()
    right = schedule.state_dict()
    other = resumable(whole, final_sparsity=0.7)
    for state, message in (
        (right, "has not the shapes"),
        ({"num_steps": 3}, "no state of a shrink schedule"),
        ({}, "no state of a shrink schedule"),
        (None, "no state of a shrink schedule"),
        (STATE, "no state of a shrink schedule"),
        ({**right, "num_steps": "third"}, "no state of a shrink schedule"),
        ({**right, "whole": {"units": [1, 2]}}, "no state of a shrink schedule"),
        ({**right, "whole": {"units": {}, "costs": {}}}, "other groups or another budget"),
        ({**right, "latency_table": {"format": "none"}}, "no state of a shrink schedule"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            other.load_state_dict(state)
    assert other.num_steps == 0
    other.step()
    other.step()
    assert whole.stem.out_channels == small.stem.out_channels


# ---- wrong input, and failures


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"begin_step": 0}, "must fit"),
        ({"begin_step": 9}, "must fit"),
        ({"num_cuts": 0}, "must fit"),
        ({"num_cuts": 9}, "must fit"),
        ({"begin_step": 1.5}, "must fit"),
        ({"num_cuts": True}, "must fit"),
        ({"num_cuts": 2.5}, "must fit"),
        ({"num_cuts": -1}, "must fit"),
        ({"curve": partial(Ramp, shape=lambda way: math.nan)}, "may only rise"),
        ({"curve": 0.5}, "a curve makes a schedule"),
        ({"curve": lambda way: way}, "a curve makes a schedule"),
        ({"curve": partial(Ramp, shape=lambda way: None)}, "a curve makes a schedule"),
        ({"curve": lambda initial, final, **steps: linear(initial, 0.5, **steps)}, "go from 0 to 1"),
        ({"curve": lambda initial, final, **steps: linear(final, initial, **steps)}, "may only rise"),
        ({"min_units": 0}, "min_units"),
        ({"round_to": -1}, "round_to"),
        ({"ignore": "*"}, "can be removed"),
        ({"ignore": "nothing.like.it"}, "nothing.like.it"),
    ],
)
def test_wrong_settings_are_refused_at_once(wrong: dict[str, object], message: str) -> None:
    model = SmallCNN()
    before = state_of(model)
    right = {"begin_step": 1, "end_step": 8, "num_cuts": 4, "final_sparsity": 0.5}
    with pytest.raises(InvalidInputError, match=message):
        shrink_schedule(model, IMAGES, **{**right, **wrong})
    assert is_unchanged(model, before)


def test_a_cut_that_fails_changes_nothing_and_can_be_made_again() -> None:
    model = SmallCNN()
    schedule = shrink_schedule(model, IMAGES, begin_step=2, end_step=2, num_cuts=1, final_sparsity=0.5)
    optimizer = sgd(model)
    train_step(model, optimizer, IMAGES)
    schedule.step()
    before = state_of(model)
    with pytest.raises(secateur.SecateurError, match="optimizer"):  # it was not passed
        schedule.step()
    assert is_unchanged(model, before)
    assert (schedule.num_steps, schedule.plans) == (1, [])
    del optimizer
    for p in model.parameters():
        p.grad = None
    assert schedule.step() is not None
    assert model.stem.out_channels == 4


def test_an_optimizer_of_another_model_is_refused_at_once() -> None:
    model, other = SmallCNN(), SmallCNN()
    for optimizer, message in ((sgd(other), "does not hold 'stem.weight'"), ("sgd", "not an optimizer")):
        with pytest.raises(secateur.HolderError, match=message):
            resumable(model, optimizer, final_sparsity=0.5)
    with pytest.raises(secateur.HolderError, match="is an optimizer"):
        resumable(model, ema=sgd(model), final_sparsity=0.5)


def test_compiled_models_are_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="compiled"):
        shrink_schedule(
            torch.compile(mlp(6)), torch.ones(1, 4), begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5
        )


def test_several_optimizers_groups_and_averages_follow() -> None:
    model = SmallCNN()
    optimizers = [
        torch.optim.AdamW([{"params": model.stem.parameters()}, {"params": model.norm.parameters(), "lr": 0.1}]),
        sgd(nn.ModuleList([model.a, model.b, model.head])),
    ]
    by_name = {name: p.detach().clone() for name, p in model.named_parameters()}
    averages = [AveragedModel(model), copy.deepcopy(model), by_name]
    schedule = resumable(model, optimizers, ema=averages, final_sparsity=0.5)
    for _ in range(9):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        averages[0].update_parameters(model)
        schedule.step()
    assert [[len(group["params"]) for group in o.param_groups] for o in optimizers] == [[2, 2], [5]]
    assert optimizers[0].param_groups[1]["lr"] == 0.1
    for optimizer in optimizers:
        assert all(state.shape == p.shape for p, s in optimizer.state.items() for state in s.values() if state.dim())
    for found in (averages[0].module, averages[1]):
        assert [p.shape for p in found.parameters()] == [p.shape for p in model.parameters()]
        assert found(IMAGES).shape == (2, 5)
    assert [t.shape for t in by_name.values()] == [p.shape for p in model.parameters()]


def test_a_step_that_a_scaler_skips_makes_no_cut() -> None:
    model = mlp(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = shrink_schedule(
        model, torch.ones(1, 4), begin_step=1, end_step=2, num_cuts=2, final_sparsity=0.5, score=shrink.taylor,
        optimizer=optimizer,
    )  # fmt: skip
    made = []
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
        if step in (0, 1, 3):
            model[2].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        made.append(schedule.step() is not None)
    assert made == [False, False, True, False, True, False]
    assert (schedule.num_steps, widths_of(model)) == (3, [5])


def test_no_cut_waits_for_parameters_that_are_not_finite() -> None:
    model = mlp(10)
    schedule = shrink_schedule(model, torch.ones(1, 4), begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5)
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    model(torch.ones(3, 4)).sum().backward()
    with pytest.raises(InvalidInputError, match="not all numbers"):
        schedule.step()


def test_what_was_removed_by_hand_between_the_cuts_counts_as_gone() -> None:
    model, x = mlp(20, 30), torch.ones(1, 4)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=2, num_cuts=2, final_sparsity=0.5, curve=linear)
    schedule.step()
    assert widths_of(model) == [15, 22]
    shrink.plan_of(model, analyze(model, x), positions={("0.weight", 0): range(11)}).apply_(model)
    schedule.step()
    assert widths_of(model) == [4, 15]


def test_units_that_came_by_hand_between_the_cuts_go_again() -> None:
    model, x = mlp(20, 30), torch.ones(1, 4)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=2, num_cuts=2, final_sparsity=0.5, curve=linear)
    schedule.step()
    shrink.plan_grow(model, x, add={"0": 40}).apply_(model)
    assert json.loads(json.dumps(schedule.state_dict()))["shapes"]["0.weight"] == [55, 4]
    schedule.step()
    assert widths_of(model) == [10, 15]


def test_frozen_parameters_become_smaller_and_stay_frozen() -> None:
    model = mlp(20).requires_grad_(False)
    schedule = shrink_schedule(model, torch.ones(1, 4), begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5)
    schedule.step()
    assert widths_of(model) == [10]
    assert not any(p.requires_grad for p in model.parameters())


def test_a_group_that_was_not_there_before_is_refused() -> None:
    model = mlp(6)
    schedule = shrink_schedule(model, torch.ones(1, 4), begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5)
    model.append(nn.Linear(2, 2))
    with pytest.raises(InvalidInputError, match="had no group"):
        schedule.step()


def test_it_shows_where_it_stands() -> None:
    model = mlp(10)
    schedule = shrink_schedule(model, torch.ones(1, 4), begin_step=2, end_step=4, num_cuts=2, final_sparsity=0.8)
    schedule.step()
    schedule.step()
    assert repr(schedule).splitlines() == [
        "ShrinkSchedule: step 2, 3 of 10 units left",
        "  x step       2  70.0% of the units gone",
        "    step       4  80.0% of the units gone",
    ]
    by_cost = shrink_schedule(mlp(10), torch.ones(1, 4), begin_step=2, end_step=4, num_cuts=2, budget=Budget(macs=0.5))
    assert "step       4  50.0% of the MACs left" in repr(by_cost)
