"""How many units may be left: least numbers, multiples that pay, multiples that an op needs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import analyze
from secateur.shrink import Budget, Scope, plan_shrink
from secateur.shrink.rounding import counts_left, multiple_of
from tests.shrink.models import Attention, randomized

CPU = torch.device("cpu")


def cnn(*widths: int, groups: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(2, widths[0], 1)]
    for old, new in pairwise(widths):
        layers += [nn.ReLU(), nn.Conv2d(old, new, 1, groups=groups)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * widths[-1], 3))


IMAGE = torch.randn(2, 2, 2, 2, generator=torch.Generator().manual_seed(0))


def left(model: nn.Module, x: Tensor = IMAGE, **kwargs: Any) -> list[int]:
    return [group.after for group in plan_shrink(model, x, **kwargs).groups]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
def test_counts_left_are_those_that_a_plain_loop_finds(number: int, least: int, multiple: int, step: int) -> None:
    expected = [n for n in range(number - 1, 0, -1) if n >= least and n % multiple == 0 and (number - n) % step == 0]
    assert counts_left(number, min_units=least, multiple=multiple, step=step).tolist() == expected


@pytest.mark.parametrize(("sparsity", "expected"), [(0.0, 40), (0.1, 40), (0.15, 32), (0.4, 24), (0.5, 24), (0.75, 8)])
def test_rounding_takes_the_nearest_multiple_and_of_two_the_larger(sparsity: float, expected: int) -> None:
    # 0.5 of 40 is 20, as near to 24 as to 16; 0.1 of 40 leaves 36, as near to all 40 as to 32
    assert left(cnn(6, 40), sparsity=sparsity, round_to=8)[1] == expected


def test_groups_that_are_too_small_are_not_rounded() -> None:
    assert left(cnn(6, 40), sparsity=0.5, round_to=8) == [3, 24]


def test_rounding_leaves_min_units() -> None:
    assert left(cnn(40), sparsity=0.95, round_to=8, min_units=9) == [16]


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_a_budget_is_met_by_multiples(share: float, scope: Scope) -> None:
    torch.manual_seed(0)
    model = cnn(40, 20, 33)
    plan = plan_shrink(model, IMAGE, budget=Budget(macs=share), round_to=8, scope=scope)
    assert plan.macs[1] <= share * plan.macs[0]
    assert all(group.after % 8 == 0 or group.after == group.before for group in plan.groups)


def test_auto_rounds_channels_of_convolutions_on_a_cpu_and_nothing_else() -> None:
    model = nn.Sequential(cnn(40), nn.ReLU(), nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, 2))
    assert left(model, sparsity=0.4, round_to="auto") == [32, 2, 18]
    groups = analyze(model, IMAGE).groups
    assert [multiple_of(group, "auto", CPU) for group in groups] == [16, 1, 1]
    assert [multiple_of(group, "auto", torch.device("cuda")) for group in groups] == [1, 1, 1]


def test_heads_of_many_positions_are_multiples_sooner() -> None:
    x = torch.randn(1, 5, 48)
    model = Attention(48, 12)  # heads of four positions
    (group,) = analyze(model, x).groups
    assert (group.kind, multiple_of(group, 8, CPU), multiple_of(group, 4, CPU)) == ("heads", 2, 1)
    assert left(model, x, sparsity=0.4, round_to=8) == [8]


def test_every_group_of_a_grouped_convolution_keeps_equally_many() -> None:
    torch.manual_seed(0)
    model = randomized(cnn(40, 40, groups=2))
    plan = plan_shrink(model, IMAGE.double(), sparsity=0.4, round_to=4)
    plan.apply_(model)
    assert model[0].out_channels == 2 * model[2].weight.shape[1]
    assert model[0].out_channels % 4 == model[2].out_channels % 4 == 0
    assert model(IMAGE.double()).shape == (2, 3)


@pytest.mark.parametrize("sparsity", [0.1, 0.35, 0.6, 0.9])
@pytest.mark.parametrize("round_to", [None, 3])
def test_dims_of_which_an_op_needs_a_multiple_keep_one(sparsity: float, round_to: int | None) -> None:
    model = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 13), nn.ReLU(), nn.Linear(13, 2))
    coupling = analyze(model, torch.zeros(1, 3))
    needing = replace(coupling, multiples=((coupling.dims["0.weight"][0], 4),))
    plan = plan_shrink(model, torch.zeros(1, 3), sparsity=sparsity, round_to=round_to, coupling=needing)
    for group, number, step in zip(plan.groups, (24, 13), (4, 1), strict=True):
        possible = [number, *(n for n in range(number - step, 1, -step) if n % (round_to or 1) == 0)]
        wanted = number - round(sparsity * number)
        assert group.after == min(possible, key=lambda n: (abs(n - wanted), -n))
    assert not any("more of its units stay" in line for line in plan.kept_whole)


@pytest.mark.parametrize("round_to", [0, -8, 1.5, "16", True], ids=repr)
def test_what_is_no_multiple_is_refused(round_to: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"round_to is a positive integer, or \"auto\""):
        plan_shrink(cnn(8), IMAGE, sparsity=0.5, round_to=round_to)
