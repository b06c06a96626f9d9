"""Budgets are met by what the smaller model really costs, and would not be met with one step less."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InfeasibleError, InvalidInputError
from secateur.graph import analyze
from secateur.shrink import Budget, GroupOverride, Scope, ShrinkPlan, l2, plan_of, plan_shrink
from tests.shrink.models import Attention, randomized


@dataclass(frozen=True)
class Shape:
    """What a small random network looks like."""

    widths: tuple[int, ...]
    kinds: tuple[str, ...]


class Network(nn.Module):
    """Convolutions in a row, some of them depthwise or in a residual branch, and a linear layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layers, width = [nn.Conv2d(2, shape.widths[0], 1)], shape.widths[0]
        for new, kind in zip(shape.widths[1:], shape.kinds, strict=True):
            new = width if kind in ("depthwise", "residual") else new
            layers.append(nn.Conv2d(width, new, 3, padding=1, groups=width if kind == "depthwise" else 1))
            width = new
        self.layers, self.kinds, self.head = nn.ModuleList(layers), shape.kinds, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for layer, kind in zip(list(self.layers)[1:], self.kinds, strict=True):
            y = torch.relu(layer(x))
            x = x + y if kind == "residual" else y
        return self.head(x.mean((2, 3)))


KINDS = ("plain", "depthwise", "residual")
SHAPES = st.integers(1, 3).flatmap(
    lambda depth: st.builds(
        Shape,
        st.tuples(*[st.integers(2, 7)] * (depth + 1)),
        st.tuples(*[st.sampled_from(KINDS)] * depth),
    )
)
X = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def num_params(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def num_macs(model: nn.Module) -> int:
    """Multiplications of convolutions and linear layers, counted at the layers' outputs."""
    total = 0

    def note(layer: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal total
        total += out.numel() * layer.weight[0].numel()

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model(X)
    for hook in hooks:
        hook.remove()
    return total


COSTS: dict[str, Callable[[nn.Module], int]] = {"macs": num_macs, "params": num_params}


def smaller(model: nn.Module, plan: ShrinkPlan) -> nn.Module:
    return plan.apply_(copy.deepcopy(model))


def one_by_one(model: nn.Module, scope: Scope, is_met: Callable[[nn.Module], bool]) -> ShrinkPlan | None:
    """A plain loop: units in their order, each really removed together with those before, until the budget is met."""
    coupling = analyze(model, X)
    scores = l2(model, coupling)
    keyed = []
    for number, group in enumerate(coupling.groups):
        ascending = sorted(group.units, key=lambda unit: scores[unit])
        mean = np.mean([scores[unit] for unit in group.units])
        for rank, unit in enumerate(ascending[: len(ascending) - 2]):
            key = (rank + 0.5) / len(ascending) if scope is Scope.PER_GROUP else scores[unit] / mean
            keyed.append((key, sorted(group.footprint), number, unit))
    order = [unit for *_, unit in sorted(keyed)]
    for number in range(len(order) + 1):
        plan = plan_of(model, coupling, order[:number])
        if is_met(smaller(model, plan)):
            return plan
    return None


@settings(max_examples=12, deadline=None)
@given(shape=SHAPES, share=st.floats(0.1, 1.0), kind=st.sampled_from([*COSTS]), scope=st.sampled_from(Scope))
def test_a_budget_is_met_by_the_first_units_of_the_order_and_by_no_fewer(
    shape: Shape, share: float, kind: str, scope: Scope
) -> None:
    torch.manual_seed(0)
    model = randomized(Network(shape))
    limit = share * COSTS[kind](model)
    expected = one_by_one(model, scope, lambda candidate: COSTS[kind](candidate) <= limit)
    if expected is None:
        with pytest.raises(InfeasibleError, match=f"least {kind}"):
            plan_shrink(model, X, budget=Budget(**{kind: share}), scope=scope)
        return
    plan = plan_shrink(model, X, budget=Budget(**{kind: share}), scope=scope)
    assert plan == expected
    assert COSTS[kind](smaller(model, plan)) == (plan.macs if kind == "macs" else plan.parameters)[1] <= limit


@settings(max_examples=12, deadline=None)
@given(
    shape=SHAPES,
    share=st.floats(0.5, 1.0),
    round_to=st.integers(2, 4),
    scope=st.sampled_from(Scope),
    own=st.sampled_from([None, 0.5]),
)
def test_a_budget_is_met_with_rounding_and_overrides(
    shape: Shape, share: float, round_to: int, scope: Scope, own: float | None
) -> None:
    torch.manual_seed(0)
    model = randomized(Network(shape))
    overrides = {} if own is None else {"layers.0": GroupOverride(sparsity=own, round_to=1)}
    try:
        plan = plan_shrink(
            model,
            X,
            budget=Budget(params=share),
            scope=scope,
            round_to=round_to,
            min_units=1,
            overrides=overrides,
        )
    except InfeasibleError:
        coupling = analyze(model, X)
        gone: list[int] = []
        for group in coupling.groups:
            number = len(group.units)
            left = round_to if number >= round_to else 1
            if own is not None and group.name == "layers.0.weight[0]":
                left = number - round(own * number)
            gone += group.units[: number - left]
        assert num_params(smaller(model, plan_of(model, coupling, gone))) > share * num_params(model)
        return
    assert num_params(smaller(model, plan)) <= share * num_params(model)
    for group in plan.groups:
        if own is not None and group.name == "layers.0.weight[0]":
            assert group.after == group.before - round(own * group.before)
        else:
            assert group.after == group.before or group.after % round_to == 0 or group.before < round_to


def test_several_limits_all_hold_and_one_of_them_is_tight() -> None:
    torch.manual_seed(0)
    model = randomized(Network(Shape((7, 6, 5), ("plain", "plain"))))
    expected = one_by_one(
        model,
        Scope.PER_GROUP,
        lambda found: num_macs(found) <= 0.6 * num_macs(model) and num_params(found) <= 0.4 * num_params(model),
    )
    assert plan_shrink(model, X, budget=Budget(macs=0.6, params=0.4)) == expected


def test_heads_and_their_columns_stay_whole_under_a_budget() -> None:
    torch.manual_seed(0)
    model, x = randomized(Attention(24, 4, lambda a: a.head_dim**-0.5)), torch.randn(2, 5, 24, dtype=torch.float64)
    plan = plan_shrink(model, x, budget=Budget(params=0.4))
    small = smaller(model, plan)
    assert small.q.out_features == small.num_heads * small.head_dim < 24
    assert num_params(small) <= 0.4 * num_params(model)
    assert small(x).shape == model(x).shape


class SharedKeys(nn.Module):
    """Eight query heads of three columns, of which every two share a key head."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads, self.head_dim = 8, 4, 3
        self.q, self.k, self.v, self.o = nn.Linear(10, 24), nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = (p(x).view(b, n, self.num_key_heads, self.head_dim).transpose(1, 2) for p in (self.k, self.v))
        k, v = (t.repeat_interleave(self.num_heads // self.num_key_heads, 1) for t in (k, v))
        y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim))


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_query_heads_go_with_the_key_head_that_they_share(share: float, scope: Scope) -> None:
    torch.manual_seed(0)
    model, x = randomized(SharedKeys()), torch.randn(2, 5, 10, dtype=torch.float64)
    plan = plan_shrink(model, x, budget=Budget(params=share), scope=scope, min_units=1)
    small = smaller(model, plan)
    assert num_params(small) <= share * num_params(model)
    assert small.k.out_features == small.num_key_heads * small.head_dim
    assert small.q.out_features == small.num_heads * small.head_dim
    assert small.num_heads % small.num_key_heads == 0
    assert small(x).shape == (2, 5, 10)


def test_an_override_is_part_of_what_the_budget_counts() -> None:
    torch.manual_seed(0)
    model = randomized(Network(Shape((8, 8), ("plain",))))
    alone = plan_shrink(model, X, sparsity=0.0, overrides={"layers.0": 0.75})
    share = alone.parameters[1] / alone.parameters[0]
    plan = plan_shrink(model, X, budget=Budget(params=share), overrides={"layers.0": 0.75})
    assert [group.after for group in plan.groups] == [2, 8]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"macs": 0.0},
        {"params": 1.5},
        {"macs": 0.5, "params": -1.0},
        {"latency": 0.0},
        {"macs": "1"},
        {"macs": True},
    ],
    ids=str,
)
def test_budgets_out_of_range_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="a budget is a fraction"):
        Budget(**kwargs)


def test_an_infeasible_budget_says_what_could_be_met() -> None:
    torch.manual_seed(0)
    model = randomized(Network(Shape((6, 6), ("plain",))))
    least = num_macs(smaller(model, plan_shrink(model, X, sparsity=0.99))) / num_macs(model)
    with pytest.raises(InfeasibleError, match=rf"least macs: {least:.1%}"):
        plan_shrink(model, X, budget=Budget(macs=0.01))
