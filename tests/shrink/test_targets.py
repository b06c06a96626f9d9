"""What a schedule is on the way to: in the end it is what one cut with the same arguments would leave, and no less."""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import Budget, InfeasibleError, InvalidInputError, plan_shrink, shrink_schedule
from secateur.graph import Coupling, analyze
from secateur.shrink import GroupOverride, LatencyTable, ShrinkPlan, TimeGrid, l1
from secateur.shrink.latency import needs
from secateur.shrink.targets import _share
from tests.shrink.models import Attention, SmallCNN, is_unchanged, randomized, state_of


class Net(nn.Module):
    """A stem that heads and a stack read, so that there are channels, heads, their columns, and neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(3, 24, 3, padding=1), nn.BatchNorm1d(24)
        self.attention = Attention(24, 2, lambda a: a.head_dim**-0.5)
        self.up, self.down, self.head = nn.Linear(24, 30), nn.Linear(30, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x))).transpose(1, 2)
        x = x + self.attention(x)
        return self.head(x + self.down(torch.relu(self.up(x))))


X = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return randomized(Net())


def table_of(model: nn.Module, inputs: Tensor = X) -> LatencyTable:
    """A table in which a product takes as long as its sizes multiplied, and a little more."""
    grids = [
        TimeGrid(one.kind, one.grid(), tuple(1e-6 + 1e-9 * math.prod(sizes) for sizes in product(*one.grid())))
        for one in needs(analyze(model, inputs))
    ]
    return LatencyTable(tuple(grids), "made up")


ARGUMENTS: dict[str, dict[str, Any]] = {
    "sparsity": {"sparsity": 0.5},
    "three quarters": {"sparsity": 0.75},
    "another score": {"sparsity": 0.5, "score": l1},
    "global": {"sparsity": 0.5, "scope": "global"},
    "the same columns in all heads": {"sparsity": 0.5, "by_row": False},
    "multiples": {"sparsity": 0.4, "round_to": 4, "min_units": 3},
    "multiples for a CPU": {"sparsity": 0.3, "round_to": "auto", "scope": "global"},
    "one group alone": {"sparsity": 0.0, "overrides": {"up": 0.7}},
    "by name, type and number": {
        "sparsity": 0.4,
        "overrides": {"up": GroupOverride(0.8, min_units=9), nn.Conv1d: GroupOverride(round_to=6), 2: 0.25},
    },
    "a competition of some": {
        "sparsity": 0.3,
        "overrides": {(0, 3): GroupOverride(0.6, scope="global"), "up": GroupOverride(min_units=4)},
    },
    "not in it": {"sparsity": 0.5, "scope": "global", "overrides": {"up": GroupOverride(scope="per_group")}},
    "ignored": {"sparsity": 0.5, "ignore": ["up.*"]},
    "MACs": {"budget": Budget(macs=0.5)},
    "parameters": {"budget": Budget(params=0.3), "scope": "global"},
    "several costs": {"budget": Budget(macs=0.7, params=0.4), "round_to": 2},
    "latency": {"budget": Budget(latency=0.6), "latency_table": table_of(net())},
    "latency told": {"sparsity": 0.5, "latency_table": table_of(net())},
    "a budget for the others": {"budget": Budget(params=0.5), "overrides": {"up": 0.3, "stem": GroupOverride(0.25)}},
}  # fmt: skip


def scheduled(model: nn.Module, arguments: dict[str, Any], num_cuts: int, x: Any = X) -> list[ShrinkPlan]:
    """Make all cuts of a schedule with the arguments of `plan_shrink`."""
    own = {{"sparsity": "final_sparsity"}.get(name, name): value for name, value in arguments.items()}
    schedule = shrink_schedule(model, x, begin_step=1, end_step=num_cuts, num_cuts=num_cuts, **own)
    for _ in range(num_cuts):
        schedule.step()
    return schedule.plans


@pytest.mark.parametrize("name", ARGUMENTS)
def test_one_cut_is_the_plan_of_the_same_arguments(name: str) -> None:
    model = net()
    expected = plan_shrink(model, X, **ARGUMENTS[name])
    (plan,) = scheduled(model, ARGUMENTS[name], 1)
    assert plan == expected
    assert plan.latency == expected.latency


@pytest.mark.parametrize(
    "name", [n for n, own in ARGUMENTS.items() if own.get("round_to") != "auto" and "sparsity" in own]
)
def test_several_cuts_leave_as_many_units_as_one(name: str) -> None:
    expected = plan_shrink(net(), X, **ARGUMENTS[name])
    *_, last = scheduled(net(), ARGUMENTS[name], 5)
    assert sum(group.after for group in last.groups) == sum(group.after for group in expected.groups)
    if "global" not in str(ARGUMENTS[name]):
        assert {(g.name, g.kind): g.after for g in last.groups} == {(g.name, g.kind): g.after for g in expected.groups}


def test_units_that_compete_go_one_after_the_other_wherever_they_are() -> None:
    model = net()
    twin = copy.deepcopy(model)
    plans = scheduled(model, {"sparsity": 0.6, "scope": "global"}, 3)
    shares = {before.after / before.before for before in plans[0].groups}
    assert len(shares) > 1, "every group has lost the same fraction"
    for plan in plans:
        plan.apply_(twin)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@settings(max_examples=15)
@given(
    macs=st.none() | st.floats(0.3, 1.0),
    params=st.none() | st.floats(0.3, 1.0),
    latency=st.none() | st.floats(0.4, 1.0),
    cuts=st.integers(1, 4),
    scope=st.sampled_from(["global", "per_group"]),
)
def test_budgets_are_met_at_the_end_and_one_unit_less_would_not_meet_them(
    macs: float | None, params: float | None, latency: float | None, cuts: int, scope: str
) -> None:
    model = net()
    limits = {"macs": macs, "params": params, "latency": latency}
    if all(limit in (None, 1.0) for limit in limits.values()):
        return
    table, whole = table_of(model), analyze(model, X)

    def costs(coupling: Coupling, units: Any = ()) -> dict[str, float]:
        seconds = table.predictor(coupling)
        return {"macs": coupling.macs(units), "params": coupling.num_parameters(units), "latency": seconds(units)}

    arguments = {"budget": Budget(**limits), "latency_table": table, "scope": scope, "by_row": False}
    scheduled(model, arguments, cuts)
    found = analyze(model, X)
    for name, limit in limits.items():
        assert limit is None or costs(found)[name] <= limit * costs(whole)[name] * (1 + 1e-12)
    dearest = {
        name: max(costs(found)[name] - costs(found, [group.units[0]])[name] for group in found.groups)
        for name in limits
    }
    assert any(
        limit is not None and costs(found)[name] + dearest[name] > limit * costs(whole)[name]
        for name, limit in limits.items()
    ), "more units went than had to"


@given(st.floats(1e-9, 1e18), st.integers(1, 10**15))
def test_no_rounding_makes_a_budget_smaller(allowed: float, now: int) -> None:
    share = _share(allowed, now)
    assert share == 1.0 if allowed >= now else allowed <= share * now <= allowed * (1 + 1e-15)


def test_a_latency_that_nobody_has_told_is_measured_once_and_goes_along() -> None:
    model = net()
    schedule = shrink_schedule(model, X, begin_step=1, end_step=2, num_cuts=2, budget=Budget(latency=0.9))
    table = LatencyTable.from_dict(schedule.state_dict()["latency_table"])
    before = table.predictor(analyze(model, X))(())
    schedule.step()
    plan = schedule.step()
    assert table.predictor(analyze(model, X))(()) == pytest.approx(plan.latency[1])
    assert plan.latency[1] <= 0.9 * before * (1 + 1e-12)


def test_a_resumed_schedule_goes_by_the_times_of_the_beginning() -> None:
    model = net()
    make = partial(shrink_schedule, begin_step=1, end_step=4, num_cuts=4, budget=Budget(latency=0.5))
    schedule = make(model, X, latency_table=table_of(model))
    schedule.step()
    schedule.step()
    state = json.loads(json.dumps(schedule.state_dict()))
    again = make(copy.deepcopy(model), X, state=state)
    assert again.state_dict() == schedule.state_dict()
    for _ in range(2):
        assert again.step() == schedule.step()
    untimed = shrink_schedule(net(), X, begin_step=1, end_step=4, num_cuts=4, budget=Budget(macs=0.5)).state_dict()
    with pytest.raises(InvalidInputError, match="another budget"):
        make(net(), X, latency_table=table_of(net()), state=untimed)


@pytest.mark.parametrize("scope", ["per_group", "global"])
def test_groups_of_which_one_unit_is_left_stay_as_they_are(scope: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    arguments = {"sparsity": 0.85, "min_units": 1, "scope": scope, "overrides": {"0": GroupOverride(min_units=1)}}
    plans = scheduled(model, arguments, 8, torch.zeros(1, 3))
    assert model[0].out_features + model[2].out_features == (2 if scope == "per_group" else 4 + 8 - round(0.85 * 12))
    assert len(plans) == 8
    assert not plans[-1].keep
    assert model(torch.zeros(1, 3)).shape == (1, 2)


def test_columns_are_known_again_when_one_head_is_left() -> None:
    torch.manual_seed(0)
    model, x = randomized(Attention(60, 3, lambda a: a.head_dim**-0.5)), torch.randn(2, 4, 60, dtype=torch.float64)
    kinds = {group.kind: number for number, group in enumerate(analyze(model, x).groups)}
    overrides = {kinds["heads"]: 0.6, kinds["head dims"]: 0.75}
    schedule = shrink_schedule(
        model, x, begin_step=1, end_step=3, num_cuts=3, final_sparsity=0.0, overrides=overrides, min_units=1
    )
    seen = []
    for _ in range(3):
        schedule.step()
        seen.append((int(model.num_heads), int(model.head_dim)))
    # 3 heads and 20 columns, less 60 and 75 % of 19/27, 26/27 and 27/27
    assert seen == [(2, 9), (1, 6), (1, 5)]
    assert repr(schedule).splitlines()[0] == "ShrinkSchedule: step 3, 6 of 23 units left"


def test_more_cuts_than_units_leave_some_cuts_without_any() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    plans = scheduled(model, {"sparsity": 0.5}, 9, torch.zeros(1, 3))
    assert model[0].out_features == 2
    assert sorted({len(plan.keep) for plan in plans}) == [0, 3]
    assert "nothing is removed" in repr(plans[-1])


def test_branches_that_the_inputs_do_not_take_can_be_shown() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 4)

        def forward(self, x: Tensor, second: bool = False) -> Tensor:
            return (self.c if second else self.b)(torch.relu(self.a(x)))

    model, x = Branches(), torch.zeros(1, 3)
    schedule = shrink_schedule(
        model, x, begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5, more_inputs=[{"x": x, "second": True}]
    )
    schedule.step()
    assert (model.a.out_features, model.b.in_features, model.c.in_features) == (4, 4, 4)
    assert model(x, second=True).shape == (1, 4)


def test_plans_can_be_verified_before_they_are_applied() -> None:
    model = randomized(Attention(12, 3, lambda a: 2.0 / a.head_dim))  # a float on the left hides what it divides by
    before = state_of(model)
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    schedule = shrink_schedule(model, x, begin_step=1, end_step=1, num_cuts=1, final_sparsity=0.5, verify=True)
    with pytest.raises(NotImplementedError, match="computes something else"):
        schedule.step()
    assert is_unchanged(model, before)


# ---- wrong arguments


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"sparsity": 1.0}, InvalidInputError, r"in \[0, 1\)"),
        ({"sparsity": -0.1}, InvalidInputError, r"in \[0, 1\)"),
        ({"sparsity": "half"}, InvalidInputError, r"in \[0, 1\)"),
        ({"sparsity": 0.5, "budget": Budget(macs=0.5)}, InvalidInputError, "either"),
        ({}, InvalidInputError, "either"),
        ({"budget": 0.5}, InvalidInputError, "a budget says what it limits"),
        ({"budget": Budget(macs=0.001)}, InfeasibleError, "cannot be met"),
        ({"budget": Budget(latency=1e-5), "latency_table": table_of(net())}, InfeasibleError, "cannot be met"),
        ({"budget": Budget(latency=0.5), "latency_table": LatencyTable(())}, InvalidInputError, "does not cover"),
        ({"budget": Budget(macs=1.0)}, InvalidInputError, "nothing would be removed"),
        ({"sparsity": 0.0}, InvalidInputError, "nothing would be removed"),
        ({"sparsity": 0.5, "min_units": 100}, InfeasibleError, "all of them must stay"),
        ({"sparsity": 0.5, "scope": "everywhere"}, InvalidInputError, "no scope"),
        ({"sparsity": 0.5, "overrides": {"stam": 0.5}}, InvalidInputError, "stam"),
        ({"sparsity": 0.5, "overrides": {9: 0.5}}, InvalidInputError, "no group of this number"),
        ({"sparsity": 0.5, "overrides": ["up"]}, InvalidInputError, "which groups"),
        ({"sparsity": 0.5, "score": "l1"}, InvalidInputError, "a function of the model and its coupling"),
        ({"sparsity": 0.5, "latency_table": "table.json"}, InvalidInputError, "measured, or loaded from a file"),
        ({"sparsity": 0.5, "overrides": {"head": 0.5}}, InvalidInputError, "output of the model"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    own = {{"sparsity": "final_sparsity"}.get(name, name): value for name, value in wrong.items()}
    model = net()
    before = state_of(model)
    with pytest.raises(error, match=message):
        shrink_schedule(model, X, begin_step=1, end_step=8, num_cuts=4, **own)
    assert is_unchanged(model, before)


def test_a_score_that_keeps_too_much_for_the_budget_is_noticed_before_the_first_cut() -> None:
    model = randomized(SmallCNN())
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)

    def keeping(model: nn.Module, coupling: Coupling) -> Any:
        scores = l1(model, coupling)
        scores[list(coupling.groups[0].units)] = math.inf
        return scores

    schedule = shrink_schedule(
        model, x, begin_step=1, end_step=8, num_cuts=8, budget=Budget(params=0.35), score=keeping
    )
    with pytest.raises(InfeasibleError):
        schedule.step()
    assert (model.stem.out_channels, model.a.out_channels, schedule.num_steps) == (8, 6, 0)
