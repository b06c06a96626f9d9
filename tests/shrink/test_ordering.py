"""In which order units go: within a group, among groups that compete, and among pools that take turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import analyze
from secateur.shrink import GroupOverride, Scope, plan_shrink, random
from secateur.shrink.ordering import Order, compete, ranked, take_turns
from tests.shrink.models import randomized

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def an_order(scores: list[float], steps: list[int], first: int = 0, size: int | None = None) -> Order:
    units = np.arange(first, first + len(scores))
    return Order(units, np.array(steps, dtype=np.int64), np.array(scores), len(scores) if size is None else size)


def steps_of(order: Order) -> list[list[int]]:
    return [order.units[start:stop].tolist() for start, stop in itertools.pairwise(order.ends.tolist())]


def test_within_a_group_the_lowest_score_goes_first_and_of_equal_ones_the_first_position() -> None:
    coupling = analyze(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.zeros(1, 4))
    (group,) = coupling.groups
    scores = np.zeros(len(coupling.solution.parents))
    scores[list(group.units)] = [3.0, 1.0, np.inf, 1.0, 0.5, 9.0]
    order = ranked(coupling, group, scores, np.array([5, 4, 3, 2]))
    assert [group.units.index(unit) for unit in order.units] == [4, 1, 3, 0]
    assert order.scores.tolist() == [score / 2.9 for score in (0.5, 1.0, 1.0, 3.0)]
    assert (order.size, order.ends.tolist()) == (6, [0, 1, 2, 3, 4])


def test_units_of_infinite_score_are_in_no_step() -> None:
    coupling = analyze(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.zeros(1, 4))
    (group,) = coupling.groups
    scores = np.full(len(coupling.solution.parents), np.inf)
    scores[list(group.units[:3])] = 1.0
    assert len(ranked(coupling, group, scores, np.array([4, 2])).units) == 2  # a step that would need a fourth unit
    assert len(ranked(coupling, group, np.full_like(scores, np.inf), np.array([4, 2])).units) == 0


def test_competing_steps_go_by_the_mean_score_of_their_units() -> None:
    one = an_order([0.1, 0.9, 1.0, 1.0], [0, 0, 1, 1])
    other = an_order([0.4, 0.6], [0, 1], first=4)
    assert steps_of(compete([one, other])) == [[4], [0, 1], [5], [2, 3]]
    assert compete([one, other]).size == 6


def test_pools_that_take_turns_lose_the_same_fraction() -> None:
    one, other = an_order([9.0] * 4, [0, 1, 2, 3], size=4), an_order([0.0] * 2, [0, 1], first=4, size=2)
    assert steps_of(take_turns([one, other])) == [[0], [4], [1], [2], [5], [3]]


@given(st.lists(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=8), max_size=4), st.data())
def test_orders_that_are_joined_keep_their_own_order_and_steps(scores: list[list[float]], data: st.DataObject) -> None:
    orders, first = [], 0
    for own in scores:
        steps = np.cumsum(data.draw(st.lists(st.integers(0, 1), min_size=len(own), max_size=len(own)))).tolist()
        orders.append(an_order(sorted(own), steps, first))
        first += len(own)
    for joined in (compete(orders), take_turns(orders)):
        assert sorted(joined.units.tolist()) == list(range(first))
        whole = steps_of(joined)
        for order in orders:
            own = set(order.units.tolist())
            assert [step for step in whole if set(step) <= own] == steps_of(order)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(0, 14))
def test_the_steps_nearest_to_a_number_are_taken(changes: list[int], wanted: int) -> None:
    order = an_order([0.0] * len(changes), np.cumsum(changes).tolist())
    possible = sorted({0, len(changes), *(i for i in range(1, len(changes)) if changes[i])})
    expected = min(possible, key=lambda number: (abs(number - wanted), number))
    assert len(order.first(wanted)) == expected


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'globally' is no scope(?s:.*)per_group, global"):
        plan_shrink(nn.Linear(2, 2), torch.zeros(1, 2), sparsity=0.5, scope="globally")


# Determinism ----------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Residual branches whose modules are registered in any order."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        makers: dict[str, Callable[[], nn.Module]] = {
            "stem": lambda: nn.Conv2d(2, 8, 1),
            "a": lambda: nn.Conv2d(8, 6, 3, padding=1, groups=2),
            "b": lambda: nn.Conv2d(6, 8, 1),
            "norm": lambda: nn.BatchNorm2d(8),
            "head": lambda: nn.Linear(8, 3),
        }
        for name in names:
            self.add_module(name, makers[name]())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.norm(x + self.b(torch.relu(self.a(x)))))
        return self.head(x.mean((2, 3)))


IMAGES = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NAMES = ("stem", "a", "b", "norm", "head")


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("are_equal", [False, True], ids=["values", "ties"])
@pytest.mark.parametrize("names", [NAMES[::-1], ("b", "head", "a", "norm", "stem")], ids=" ".join)
def test_plans_do_not_depend_on_the_order_of_registration(
    names: tuple[str, ...], are_equal: bool, scope: Scope
) -> None:
    torch.manual_seed(0)
    model, other = randomized(Branches(NAMES)), randomized(Branches(names))
    if are_equal:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
    other.load_state_dict(model.state_dict())
    overrides = {"a": 0.4, "b": GroupOverride(round_to=2)}
    one = plan_shrink(model, IMAGES, sparsity=0.5, scope=scope, min_units=1, overrides=overrides)
    two = plan_shrink(
        other, IMAGES, sparsity=0.5, scope=scope, min_units=1, overrides=dict(reversed(overrides.items()))
    )
    assert one == two
    assert one.parameters[1] < one.parameters[0]


def test_a_plan_does_not_depend_on_or_touch_the_global_random_state() -> None:
    torch.manual_seed(0)
    model = randomized(Branches(NAMES))
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = plan_shrink(model, IMAGES, sparsity=0.5, score=random)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    torch.manual_seed(2)
    np.random.seed(2)
    assert plan_shrink(model, IMAGES, sparsity=0.5, score=random) == first
