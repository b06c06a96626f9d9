"""How many units go, which, and what cannot be asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from secateur import InfeasibleError, InvalidInputError, UnsupportedError, _compat
from secateur.graph import analyze
from secateur.shrink import Budget, l2, plan_of, plan_shrink, random, shrink_
from tests.shrink.models import SmallCNN, equals_the_zeroed_model, is_unchanged, randomized, state_of


def mlp() -> nn.Module:
    return randomized(nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)))


X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("sparsity", "left"), [(0.0, [10, 20]), (0.2, [8, 16]), (0.5, [5, 10]), (0.9, [2, 2])])
def test_sparsity_takes_the_same_fraction_of_every_group_down_to_min_units(sparsity: float, left: list[int]) -> None:
    assert [g.after for g in plan_shrink(mlp(), X, sparsity=sparsity).groups] == left


@pytest.mark.parametrize("min_units", [1, 3, 7])
def test_min_units_stay(min_units: int) -> None:
    assert [g.after for g in plan_shrink(mlp(), X, sparsity=0.99, min_units=min_units).groups] == [min_units] * 2


def test_units_of_lowest_score_go_first_as_a_plain_loop_finds_them() -> None:
    model = mlp()
    first, bias, second = (t.detach() for t in (model[0].weight, model[0].bias, model[2].weight))
    norms = [float(sum(t.square().sum() for t in (first[i], bias[i], second[:, i])) ** 0.5) for i in range(10)]
    expected = sorted(sorted(range(10), key=norms.__getitem__)[4:])
    assert plan_shrink(model, X, sparsity=0.4).keep["0.weight"][0].tolist() == expected


def test_global_competition_compares_scores_divided_by_the_mean_of_their_group() -> None:
    model = mlp()
    coupling = analyze(model, X)
    scores = l2(model, coupling)
    relative = {u: scores[u] / np.mean(scores[list(g.units)]) for g in coupling.groups for u in g.units}
    expected = set(sorted(relative, key=lambda u: relative[u])[:12])
    plan = plan_shrink(model, X, sparsity=0.4, per_group=False)
    assert plan == plan_of(model, coupling, expected)


@settings(max_examples=12)
@given(share=st.floats(0.15, 1.0), kind=st.sampled_from(["macs", "params"]), per_group=st.booleans())
def test_budgets_are_met_within_one_unit(share: float, kind: str, per_group: bool) -> None:
    torch.manual_seed(0)
    model = mlp()
    plan = plan_shrink(model, X, budget=Budget(**{kind: share}), per_group=per_group)
    before, after = plan.macs if kind == "macs" else plan.parameters
    assert after <= share * before
    largest = 4 + 20 if kind == "macs" else 4 + 1 + 20  # what one unit costs at most
    assert after > share * before - largest * (3 if kind == "macs" else 1)


def test_a_budget_for_both_meets_both() -> None:
    plan = plan_shrink(mlp(), X, budget=Budget(macs=0.7, params=0.4))
    assert plan.parameters[1] <= 0.4 * plan.parameters[0]
    assert plan.macs[1] <= 0.7 * plan.macs[0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "give either sparsity=… or budget=…"),
    "both": ({"sparsity": 0.5, "budget": Budget(macs=0.5)}, "give either"),
    "one": ({"sparsity": 1.0}, r"in \[0, 1\)"),
    "negative": ({"sparsity": -0.1}, r"in \[0, 1\)"),
    "infeasible": ({"budget": Budget(params=0.01)}, "budget cannot be met(?s:.*)least params"),
    "misspelt": ({"sparsity": 0.5, "ignore": ["head.*"]}, "matches no parameter"),
    "everything ignored": ({"sparsity": 0.5, "ignore": [nn.Linear]}, "nothing in Sequential can be removed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_refused_and_changes_nothing(what: str) -> None:
    model = mlp()
    before = state_of(model)
    kwargs, message = WRONG[what]
    with pytest.raises(InvalidInputError, match=message):
        shrink_(model, X, **kwargs)
    assert is_unchanged(model, before)


@pytest.mark.parametrize("kwargs", [{}, {"macs": 0.0}, {"params": 1.5}, {"macs": 0.5, "params": -1.0}], ids=str)
def test_budgets_out_of_range_are_refused(kwargs: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="a budget is a fraction"):
        Budget(**kwargs)


def test_an_infeasible_budget_says_what_could_be_met() -> None:
    with pytest.raises(InfeasibleError, match=r"least macs: 5\.7%"):
        plan_shrink(mlp(), X, budget=Budget(macs=0.01))


def test_wrong_example_inputs_give_the_users_own_exception_and_change_nothing() -> None:
    model = mlp()
    before = state_of(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        shrink_(model, torch.ones(2, 5, dtype=torch.float64), sparsity=0.5)
    assert is_unchanged(model, before)


def test_lazy_and_compiled_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'0\.weight' is lazy"):
        plan_shrink(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.ones(1, 2), sparsity=0.5)
    with pytest.raises(UnsupportedError, match="compiled"):
        plan_shrink(torch.compile(nn.Linear(2, 2)), torch.ones(1, 2), sparsity=0.5)


def test_a_plan_does_not_depend_on_or_touch_the_global_random_state() -> None:
    model = mlp()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = plan_shrink(model, X, sparsity=0.5, score=random)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert plan_shrink(model, X, sparsity=0.5, score=random) == first


def test_a_group_that_must_keep_more_does_not_take_from_others() -> None:
    model = randomized(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 2)))
    assert [g.after for g in plan_shrink(model, X, sparsity=0.5).groups] == [2, 10]


def test_infinite_scores_keep_units_and_nan_is_refused() -> None:
    model = mlp()
    coupling = analyze(model, X)
    first = np.array(coupling.groups[0].units)

    def kept(_: nn.Module, of: Any) -> Any:
        scores = np.ones(len(of.solution.parents))
        scores[first] = np.inf
        return scores

    assert [g.after for g in plan_shrink(model, X, sparsity=0.5, score=kept).groups] == [10, 10]
    with pytest.raises(InvalidInputError, match="not all numbers"):
        plan_shrink(model, X, sparsity=0.5, score=lambda m, c: kept(m, c) * np.nan)


def test_shrink_is_plan_and_apply_in_one_call_with_the_state_carried() -> None:
    model = randomized(SmallCNN())
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plan = plan_shrink(model, x, sparsity=0.5)
    smaller = equals_the_zeroed_model(model, plan, x)
    assert shrink_(model, x, sparsity=0.5, optimizer=optimizer, verify=True) == plan
    assert torch.equal(model(x), smaller(x))


def test_positions_of_no_tensor_dim_or_place_are_refused() -> None:
    model = mlp()
    coupling = analyze(model, X)
    before = state_of(model)
    for positions, message in (
        ({("nope", 0): [0]}, "no parameter or buffer 'nope'"),
        ({("0.weight", 2): [0]}, "'0.weight' has no dim 2"),
        ({("0.weight", 0): [10]}, "no such positions along dim 0"),
        ({("0.weight", 1): [0]}, "position 0 of '0.weight' along dim 1 cannot go: "),
        ({("4.weight", 0): [0]}, "cannot go: it is an output of the model"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            plan_of(model, coupling, positions=positions)
    assert is_unchanged(model, before)


def test_wrapped_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapper(nn.Sequential):
        pass

    monkeypatch.setattr(_compat, "wrappers", lambda: {Wrapper: "it keeps buckets of the old size"})
    model = Wrapper(mlp())
    before = state_of(model)
    with pytest.raises(UnsupportedError, match="inside Wrapper cannot be analysed"):
        shrink_(model, X, sparsity=0.5)
    assert is_unchanged(model, before)
