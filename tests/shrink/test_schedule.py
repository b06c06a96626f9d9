"""Gradual shrinking: exactly what is asked for, at the steps asked for, and training goes on as if nothing were odd."""

from __future__ import annotations

import copy
import json
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import secateur
from secateur import Budget, InfeasibleError, InvalidInputError, UnsupportedError, shrink, shrink_schedule
from secateur.graph import Coupling, analyze
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
    shape=st.sampled_from([shrink.cubic, shrink.linear]),
)
def test_every_group_has_lost_exactly_its_share_after_every_cut(
    widths: list[int], begin: int, span: int, cuts: int, final: float, shape: object
) -> None:
    model, x = mlp(*widths), torch.randn(3, 4)
    cuts = min(cuts, span + 1)
    schedule = shrink_schedule(
        model, x, begin_step=begin, end_step=begin + span, final_sparsity=final, num_cuts=cuts, shape=shape
    )
    made = 0
    for step in range(1, begin + span + 3):
        plan = schedule.step()
        made += plan is not None
        way = made / cuts
        gone = final * (1 - (1 - way) ** 3 if shape is shrink.cubic else way)
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
def test_budgets_are_met_at_the_end_by_as_few_units_as_possible(budget: Budget) -> None:
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
    # with one more unit, the dearest at most, the budget would not be met
    for share, cost, now_cost, whole_cost in (
        (budget.macs, now.macs, now.macs(), whole.macs()),
        (budget.params, now.num_parameters, now.num_parameters(), whole.num_parameters()),
    ):
        dearest = max(now_cost - cost([group.units[0]]) for group in now.groups)
        if share is not None and now_cost + dearest > share * whole_cost:
            break
    else:
        pytest.fail("more units went than had to")


def test_latency_budgets_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="latency"):
        shrink_schedule(SmallCNN(), IMAGES, begin_step=1, end_step=2, num_cuts=2, budget=Budget(latency=0.5))


def test_kept_units_are_multiples_if_asked() -> None:
    model, x = mlp(40, 24), torch.randn(3, 4)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=3, num_cuts=3, final_sparsity=0.6, round_to=8)
    seen = []
    for _ in range(3):
        schedule.step()
        seen.append(widths_of(model))
    # 40 and 24 less 60 % of 19/27, 26/27 and 27/27, each to the nearest multiple of 8
    assert seen == [[24, 16], [16, 8], [16, 8]]


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


def resumable(model: nn.Module, optimizer: object = None) -> shrink.ShrinkSchedule:
    return shrink_schedule(model, IMAGES, begin_step=2, end_step=8, final_sparsity=0.7, num_cuts=4, optimizer=optimizer)


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 8, 9])
def test_a_resumed_training_goes_the_same_way(stop: int, tmp_path: object) -> None:
    torch.manual_seed(5)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = resumable(model, optimizer)
    for step in range(1, 11):
        train_step(model, optimizer, IMAGES)
        schedule.step()
        if step == stop:
            secateur.save(model, tmp_path / "model.safetensors")
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            written = json.dumps(schedule.state_dict())

    again = secateur.load_(SmallCNN(), tmp_path / "model.safetensors")
    its_optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    its_optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    its_schedule = resumable(again, its_optimizer)
    its_schedule.load_state_dict(json.loads(written))
    for _ in range(stop, 10):
        train_step(again, its_optimizer, IMAGES)
        its_schedule.step()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert its_schedule.state_dict() == schedule.state_dict()
    assert repr(its_schedule) == repr(schedule)


def test_a_budget_is_one_of_the_whole_after_resuming() -> None:
    model = SmallCNN()
    make = partial(shrink_schedule, begin_step=1, end_step=4, budget=Budget(params=0.3), num_cuts=4)
    schedule = make(model, IMAGES)
    for _ in range(2):
        schedule.step()
    again = make(model, IMAGES)
    again.load_state_dict(schedule.state_dict())
    for _ in range(2):
        again.step()
    assert analyze(model, IMAGES).num_parameters() / analyze(SmallCNN(), IMAGES).num_parameters() <= 0.3


def test_a_state_for_other_sizes_is_refused() -> None:
    small, whole = SmallCNN(), SmallCNN()
    schedule = resumable(small)
    for _ in range(3):
        schedule.step()
    other = resumable(whole)
    for state in (schedule.state_dict(), {"num_steps": 3}, {"num_steps": 3, "whole": {}, "now": 4}):
        with pytest.raises(InvalidInputError, match=r"has not the sizes|no state of a shrink schedule"):
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
        ({"final_sparsity": None}, "either"),
        ({"final_sparsity": 0.0}, "either"),
        ({"final_sparsity": 1.0}, "either"),
        ({"budget": Budget(macs=0.5)}, "either"),
        ({"shape": lambda way: 0.5 * way}, "must rise"),
        ({"shape": lambda way: 1 - way}, "must rise"),
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = shrink_schedule(model, IMAGES, begin_step=2, end_step=2, num_cuts=1, final_sparsity=0.5)
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


def test_a_budget_that_cannot_be_met_is_refused_before_the_first_cut() -> None:
    model = SmallCNN()
    before = state_of(model)
    schedule = shrink_schedule(model, IMAGES, begin_step=5, end_step=8, num_cuts=2, budget=Budget(macs=0.001))
    with pytest.raises(InfeasibleError):
        schedule.step()
    assert is_unchanged(model, before)


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
    by_cost = shrink_schedule(model, torch.ones(1, 4), begin_step=2, end_step=4, num_cuts=2, budget=Budget(macs=0.5))
    assert "step       4  50.0% of the MACs left" in repr(by_cost)
