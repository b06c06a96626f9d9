"""Predicted times, by tables that are made up."""

from __future__ import annotations

import copy
import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InfeasibleError, InvalidInputError
from secateur.graph import analyze
from secateur.graph.coupling import Coupling
from secateur.shrink import Budget, LatencyTable, Scope, ShrinkPlan, TimeGrid, plan_shrink
from secateur.shrink.latency import Needed, needs
from tests.shrink.models import Attention, randomized


def table_for(coupling: Coupling, time: Any) -> LatencyTable:
    """A table in which the time of a product is a function of its sizes."""
    grids = []
    for needed in needs(coupling):
        sizes = needed.grid()
        grids.append(TimeGrid(needed.kind, sizes, tuple(float(time(one)) for one in product(*sizes))))
    return LatencyTable(tuple(grids), "made up")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return randomized(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)))


X = torch.zeros(5, 4, dtype=torch.float64)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 40, 3, padding=1), nn.Conv2d(40, 40, 3, groups=40)
        self.c, self.d = nn.Conv2d(40, 24, 1, groups=2), nn.ConvTranspose2d(24, 8, 2)
        self.e = nn.Conv1d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.e(self.d(torch.relu(self.c(self.b(self.a(x))))).flatten(2))


def test_a_time_is_linear_between_measured_ones_in_every_size() -> None:
    grid = TimeGrid("matmul", ((1,), (7,), (1, 5), (2, 6, 10)), (0.0, 1.0, 5.0, 4.0, 5.0, 17.0))
    assert [grid.at((1, 7, k, m)) for k, m in ((1, 2), (5, 6), (1, 4), (3, 2), (3, 4), (2, 8))] == [
        0.0, 5.0, 0.5, 2.0, 2.5, 3.0 + (11.0 - 3.0) / 4,
    ]  # fmt: skip


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_a_time_that_is_linear_in_each_size_is_given_back(slopes: list[int]) -> None:
    a, b, c, d = slopes

    def time(k: int, m: int) -> int:
        return a + b * k + c * m + d * k * m

    sizes = ((1,), (3,), (1, 4, 9), (2, 8))
    grid = TimeGrid("matmul", sizes, tuple(float(time(k, m)) for _, _, k, m in product(*sizes)))
    for k, m in product(range(1, 10), range(2, 9)):
        assert grid.at((1, 3, k, m)) == pytest.approx(time(k, m))


def test_below_the_smallest_size_the_time_is_that_of_the_smallest() -> None:
    grid = TimeGrid("matmul", ((1,), (7,), (4, 8), (3,)), (2.0, 4.0))
    assert [grid.at((1, 7, k, 3)) for k in (0, 1, 4)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "sizes",
    [((1,), (4, 2)), ((1,), ()), ((1,), (2, 2)), ((1,), (2, 3, 4))],
    ids=["descending", "none", "twice", "times"],
)
def test_a_grid_without_a_time_for_each_combination_is_refused(sizes: Any) -> None:
    with pytest.raises(InvalidInputError, match="one time for each combination"):
        TimeGrid("matmul", sizes, (1.0, 2.0))


def test_products_are_known_by_their_sizes_and_by_which_of_them_change() -> None:
    x = torch.zeros(2, 3, 6, 6)
    found = needs(analyze(Convolutions(), x))
    assert [(one.kind, one.sizes) for one in found] == [
        ("convolution", (2, 1, 40, 3, 3, 3, 6, 6)),
        ("convolution", (2, 40, 1, 1, 3, 3, 4, 4)),
        ("convolution", (2, 2, 12, 20, 1, 1, 4, 4)),
        ("convolution", (2, 1, 24, 8, 2, 2, 4, 4)),  # a weight of a transposed one is (inputs, outputs)
        ("convolution", (2, 1, 4, 8, 3, 23)),
    ]
    assert [[place for place, changes in enumerate(one.changes) if changes] for one in found] == [
        [2], [1], [1, 2, 3], [2, 3], [3],
    ]  # fmt: skip


def test_heads_are_a_batch_of_matrix_products() -> None:
    found = needs(analyze(Attention(12, 3, lambda a: a.head_dim**-0.5), torch.zeros(2, 5, 12)))
    linear = Needed("matmul", (1, 10, 12, 12), (False, False, False, True))
    assert found == [
        *[linear] * 3,
        Needed("matmul", (6, 5, 4, 5), (True, False, True, False)),
        Needed("matmul", (6, 5, 5, 4), (True, False, False, True)),
        Needed("matmul", (1, 10, 12, 12), (False, False, True, False)),
    ]


@pytest.mark.parametrize("kind", ["convolutions", "attention"])
def test_with_times_that_are_macs_the_prediction_is_that_of_the_smaller_model(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "convolutions":
        model, x = randomized(Convolutions()), torch.zeros(2, 3, 6, 6, dtype=torch.float64)
    else:
        model, x = randomized(Attention(24, 4, lambda a: a.head_dim**-0.5)), torch.zeros(2, 5, 24, dtype=torch.float64)
    table = table_for(analyze(model, x), math.prod)
    plan = plan_shrink(model, x, sparsity=0.4, latency_table=table)
    smaller = plan.apply_(copy.deepcopy(model))
    assert plan.latency == pytest.approx((analyze(model, x).macs(), analyze(smaller, x).macs()))
    assert plan.latency == pytest.approx(plan.macs)


def is_slow_until_half(sizes: tuple[int, ...]) -> float:
    """A time that does not fall with the first units that go: a staircase."""
    _, _, k, m = sizes
    return (1.0 if k <= 8 else 3.0) * (1.0 if m <= 8 else 3.0)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("share", [1.0, 0.9, 0.7, 0.5, 0.3])
@pytest.mark.parametrize("time", [math.prod, is_slow_until_half], ids=["macs", "staircase"])
def test_a_budget_on_latency_is_met_within_one_unit(time: Any, share: float, scope: Scope) -> None:
    model = mlp()
    coupling = analyze(model, X)
    table = table_for(coupling, time)
    plan = plan_shrink(model, X, budget=Budget(latency=share), scope=scope, latency_table=table)
    before, after = plan.latency
    assert after <= share * before
    fewer = [plan_with_one_more(model, coupling, table, plan, number) for number in range(len(plan.groups))]
    assert share == 1.0 or any(one > share * before for one in fewer)


def plan_with_one_more(
    model: nn.Module, coupling: Coupling, table: LatencyTable, plan: ShrinkPlan, number: int
) -> float:
    """The latency with one more unit in one group: it depends on their numbers only."""
    gone = []
    for place, (group, planned) in enumerate(zip(coupling.groups, plan.groups, strict=True)):
        left = min(planned.before, planned.after + (place == number))
        gone += group.units[left:]
    return table.predictor(coupling)(gone)


def test_the_same_table_gives_the_same_plan_and_a_file_brings_it_back(tmp_path: Path) -> None:
    model = mlp()
    table = table_for(analyze(model, X), is_slow_until_half)
    table.save(tmp_path / "table.json")
    loaded = LatencyTable.load(tmp_path / "table.json")
    assert loaded == table
    plans = [plan_shrink(model, X, budget=Budget(latency=0.5), latency_table=one) for one in (table, loaded)]
    assert plans[0] == plans[1]
    assert plans[0].latency == plans[1].latency


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": "other", "grids": [], "machine": ""}', '{"grids": [{"kind": "matmul"}]}']
)
def test_a_file_that_holds_no_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InvalidInputError, match="holds no latency table"):
        LatencyTable.load(tmp_path / "table.json")


def test_a_product_that_the_table_does_not_cover_is_refused() -> None:
    model = mlp()
    table = table_for(analyze(model, X), math.prod)
    for grids in (table.grids[:1], ()):
        with pytest.raises(InvalidInputError, match=r"does not cover a matmul(?s:.*)sizes"):
            plan_shrink(model, X, sparsity=0.5, latency_table=LatencyTable(grids))
    with pytest.raises(InvalidInputError, match="does not cover"):  # another batch
        plan_shrink(model, X[:2], sparsity=0.5, latency_table=table)


def test_a_table_serves_the_smaller_model_too() -> None:
    model = mlp()
    table = table_for(analyze(model, X), math.prod)
    first = plan_shrink(model, X, sparsity=0.5, latency_table=table)
    first.apply_(model)
    again = plan_shrink(model, X, sparsity=0.5, latency_table=table)
    assert again.latency[0] == first.latency[1]


def test_an_infeasible_latency_says_what_could_be_met() -> None:
    model = mlp()
    table = table_for(analyze(model, X), lambda sizes: 1.0 + sizes[2] / 100)
    with pytest.raises(InfeasibleError, match=r"least latency: 9\d\.\d%"):
        plan_shrink(model, X, budget=Budget(latency=0.5), latency_table=table)


def test_a_saved_plan_keeps_its_prediction(tmp_path: Path) -> None:
    model = mlp()
    table = table_for(analyze(model, X), math.prod)
    plan = plan_shrink(model, X, sparsity=0.5, latency_table=table)
    plan.save(tmp_path / "plan.safetensors")
    loaded = ShrinkPlan.load(tmp_path / "plan.safetensors")
    assert loaded.latency == plan.latency
    before, after = (1e3 * value for value in plan.latency)
    assert f", latency {before:.3g} ms -> {after:.3g} ms ({after / before:.1%}) as predicted" in repr(plan)
    assert repr(loaded) == repr(plan)
    assert "predicted" not in repr(plan_shrink(model, X, sparsity=0.5))


def test_tables_hold_plain_numbers(tmp_path: Path) -> None:
    LatencyTable((TimeGrid("matmul", ((1,), (2,), (1, 4), (3,)), (1.0, 2.0)),), "here").save(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text()) == {
        "format": "secateur.LatencyTable.1",
        "machine": "here",
        "grids": [{"kind": "matmul", "sizes": [[1], [2], [1, 4], [3]], "seconds": [1.0, 2.0]}],
    }


def test_a_table_prints_what_it_covers_and_not_every_time() -> None:
    grid = TimeGrid("matmul", ((1,), (8,), (1, 64), (32,)), (1e-6, 4e-6))
    assert repr(LatencyTable((grid, grid), "a machine")) == "LatencyTable: 2 products, 4 measured times, a machine"
    assert repr(LatencyTable((grid,))) == "LatencyTable: 1 products, 2 measured times"
