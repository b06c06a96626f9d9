"""How many units go, which, and what cannot be asked for."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secateur import InfeasibleError, InvalidInputError, UnsupportedError, _compat, prune_
from secateur.graph import analyze
from secateur.graph.watching import Tie
from secateur.patterns import Channel
from secateur.shrink import Budget, LatencyTable, Scope, l2, plan_of, plan_shrink, random, shrink_
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
    plan = plan_shrink(model, X, sparsity=0.4, scope="global")
    assert plan == plan_of(model, coupling, expected)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "give either sparsity=… or budget=…"),
    "both": ({"sparsity": 0.5, "budget": Budget(macs=0.5)}, "give either"),
    "one": ({"sparsity": 1.0}, r"in \[0, 1\)"),
    "negative": ({"sparsity": -0.1}, r"in \[0, 1\)"),
    "infeasible": ({"budget": Budget(params=0.01)}, "budget cannot be met(?s:.*)least params"),
    "sparsity that is none": ({"sparsity": "0.5"}, r"in \[0, 1\)"),
    "budget that is none": ({"budget": 0.5}, "a budget says what it limits"),
    "scope": ({"sparsity": 0.5, "scope": "layer"}, r"'layer' is no scope"),
    "round_to": ({"sparsity": 0.5, "round_to": -1}, "round_to is a positive integer"),
    "min_units": ({"sparsity": 0.5, "min_units": 0}, "min_units is the number of units that stay(?s:.*)at least 1"),
    "all must stay": ({"sparsity": 0.5, "min_units": 20}, r"all of them must stay(?s:.*)wanted: 15(?s:.*)min_units"),
    "too little": ({"sparsity": 0.01}, r"all of them must stay(?s:.*)wanted: 0 (?s:.*)less than half a unit"),
    "too little of all": ({"sparsity": 0.01, "scope": "global"}, r"must stay(?s:.*)units: 30 (?s:.*)half a unit"),
    "nearest multiple": ({"sparsity": 0.1, "round_to": 10}, r"all of them must stay(?s:.*)wanted: 3 (?s:.*)round_to"),
    "table": ({"sparsity": 0.5, "latency_table": "x"}, "a latency table is measured, or loaded"),
    "table for a budget": ({"budget": Budget(macs=0.5), "latency_table": {}}, "a latency table is measured, or loaded"),
    "score that is none": ({"sparsity": 0.5, "score": "l1"}, "score=… is a function of the model and its coupling"),
    "score of units": ({"sparsity": 0.5, "score": lambda m, c: np.ones(c.num_units)}, "one number a class"),
    "score of words": ({"sparsity": 0.5, "score": lambda m, c: "high"}, "one number a class(?s:.*)found: 'high'"),
    "score of lists": ({"sparsity": 0.5, "score": lambda m, c: [[1, 2], [3]]}, "one number a class"),
    "score that takes one": ({"sparsity": 0.5, "score": lambda m: 1.0}, "cannot be called as a score of units"),
    "override of nothing": ({"sparsity": 0.5, "overrides": {"0": None}}, r"in \[0, 1\)"),
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


@pytest.mark.parametrize(
    ("inputs", "error", "message", "note"),
    [
        (torch.ones(2, 5), RuntimeError, "mat1 and mat2", r"model\(tensor of shape \(2, 5\)\); give several"),
        ((X, X), TypeError, "positional argument", r"model\(tensor.*, tensor.*\); a tuple or list is spread"),
        ({"x": X, "scale": 2}, TypeError, "unexpected keyword", r"model\(x=tensor of shape \(3, 4\), scale=int\)"),
        (lambda model: model(X, None), TypeError, "positional argument", "the function that was given"),
    ],
    ids=["shape", "tuple", "dict", "function"],
)
def test_wrong_example_inputs_give_the_users_own_exception_with_a_note(
    inputs: Any, error: type[Exception], message: str, note: str
) -> None:
    model = mlp()
    before = state_of(model)
    with pytest.raises(error, match=message) as raised:
        shrink_(model, inputs, sparsity=0.5)
    assert re.search(
        f"raised by Sequential as secateur ran it on the example inputs: {note}", raised.value.__notes__[0]
    )
    assert is_unchanged(model, before)


@pytest.mark.parametrize("inputs", [None, 3, "x", np.ones(3)], ids=lambda value: type(value).__name__)
def test_example_inputs_of_no_known_form_are_refused(inputs: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"example inputs are a tensor(?s:.*)found: {type(inputs).__name__}"):
        plan_shrink(mlp(), inputs, sparsity=0.5)
    if inputs is not None:
        plan, model = plan_shrink(mlp(), X, sparsity=0.5), mlp()
        before = state_of(model)
        for call in (plan.verify, lambda m, x: plan.apply_(m, tried_on=x), lambda m, x: plan.apply_(m, verify=x)):
            with pytest.raises(InvalidInputError, match="example inputs are a tensor"):
                call(model, inputs)
        assert is_unchanged(model, before)


def test_a_plan_that_removes_nothing_says_so_and_changes_nothing() -> None:
    model = mlp()
    before = state_of(model)
    for kwargs in ({"sparsity": 0.0}, {"budget": Budget(macs=1.0)}, {"sparsity": 0.5, "overrides": {"*": 0.0}}):
        plan = shrink_(model, X, **kwargs)
        assert plan.keep == {}
        assert "nothing is removed" in repr(plan).splitlines()[2]
    assert "nothing is removed" not in repr(plan_shrink(model, X, sparsity=0.5))
    assert is_unchanged(model, before)


def test_frozen_parameters_shrink_and_stay_frozen() -> None:
    model = mlp().requires_grad_(False)
    expected = plan_shrink(mlp(), X, sparsity=0.5)
    model.load_state_dict(dict(zip(model.state_dict(), mlp().state_dict().values(), strict=True)))
    plan = shrink_(model, X, sparsity=0.5)
    assert [group.after for group in plan.groups] == [group.after for group in expected.groups] == [5, 10]
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] * 6
    assert model(X).shape == (3, 2)


def test_lazy_and_compiled_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'0\.weight' is lazy"):
        plan_shrink(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.ones(1, 2), sparsity=0.5)
    with pytest.raises(UnsupportedError, match="compiled"):
        plan_shrink(torch.compile(nn.Linear(2, 2)), torch.ones(1, 2), sparsity=0.5)


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


@pytest.mark.parametrize(
    "options",
    [
        {"budget": Budget(macs=0.4)},
        {"sparsity": 0.5, "score": random},
        {"sparsity": 0.5, "scope": "global"},
        {"sparsity": 0.5, "round_to": 4},
        {"sparsity": 0.5, "min_units": 7},
        {"sparsity": 0.5, "ignore": "0"},
        {"sparsity": 0.5, "overrides": {"0": 0.2}},
    ],
    ids=lambda options: [*options][-1],
)
def test_shrink_takes_every_option_that_a_plan_takes(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = mlp()
    expected = plan_shrink(model, X, **options)
    assert expected != plan_shrink(model, X, sparsity=0.5)
    assert shrink_(model, X, **options) == expected


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


@pytest.mark.parametrize("given", ["positions", "units"])
def test_all_units_of_a_group_asked_away_are_refused(given: str) -> None:
    model = mlp()
    coupling = analyze(model, X)
    before = state_of(model)
    asked: Any = (
        {"positions": {("0.bias", 0): range(10)}} if given == "positions" else {"units": coupling.groups[0].units}
    )
    with pytest.raises(
        InvalidInputError, match=r"nothing of '0.weight' would be left along dim 0(?s:.*)all 10 positions"
    ):
        plan_of(model, coupling, **asked)
    assert is_unchanged(model, before)


@pytest.mark.parametrize("key", ["0.weight", ("0.weight",), ("0.weight", "0"), (0, "0.weight"), 3], ids=repr)
def test_positions_of_no_pair_are_refused(key: Any) -> None:
    model = mlp()
    with pytest.raises(InvalidInputError, match=r"given for a tensor and a dim(?s:.*)\('(0|fc).weight', 0\): \[3, 5\]"):
        plan_of(model, analyze(model, X), positions={key: [1]})


@pytest.mark.parametrize("positions", [[("0.weight", 0)], 3, "0.weight"], ids=repr)
def test_positions_without_places_are_refused(positions: Any) -> None:
    model = mlp()
    with pytest.raises(InvalidInputError, match="given for pairs of a tensor and a dim"):
        plan_of(model, analyze(model, X), positions=positions)


@pytest.mark.parametrize("asked", [3, "12", [1.0], [True] * 10, torch.ones(10, dtype=torch.bool), None], ids=repr)
def test_positions_that_are_no_numbers_are_refused(asked: Any) -> None:
    model = mlp()
    with pytest.raises(InvalidInputError, match="are not whole numbers"):
        plan_of(model, analyze(model, X), positions={("0.weight", 0): asked})


def test_positions_may_be_any_whole_numbers() -> None:
    model = mlp()
    coupling = analyze(model, X)
    plans = [
        plan_of(model, coupling, positions={("0.weight", 0): asked})
        for asked in ([1, 4], torch.tensor([4, 1]), np.array([1, 4]), range(1, 7, 3), {4, 1})
    ]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0].keep["0.weight"][0].tolist() == [0, 2, 3, 5, 6, 7, 8, 9]


def test_where_the_code_lets_nothing_go_the_reason_is_given() -> None:
    model = mlp()
    coupling = analyze(model, X)
    ties = [Tie(size, coupling.dims[name][0], "reshape") for name, size in (("0.weight", 10), ("2.weight", 20))]
    wanting = replace(coupling, sizing=replace(coupling.sizing, derived=ties))
    with pytest.raises(
        InfeasibleError, match=r"must stay(?s:.*)0.weight\[0\]: its size is computed(?s:.*)2.weight\[0\]"
    ):
        plan_shrink(model, X, sparsity=0.5, coupling=wanting)


@pytest.mark.parametrize("scope", Scope)
def test_a_group_that_the_code_does_not_let_go_is_made_up_for_by_others(scope: Scope) -> None:
    model = mlp()
    coupling = analyze(model, X)
    tie = Tie(10, coupling.dims["0.weight"][0], "reshape")  # whatever goes, the code wants ten of the first layer
    wanting = replace(coupling, sizing=replace(coupling.sizing, derived=[tie]))
    plan = plan_shrink(model, X, budget=Budget(params=0.5), scope=scope, coupling=wanting)
    assert plan.parameters[1] <= 0.5 * plan.parameters[0]
    assert plan.groups[0].after == 10
    # the second group alone meets it: each of its units has 10 + 1 + 2 parameters, and 52 others stay
    assert plan.parameters == (312, 52 + 13 * plan.groups[1].after)
    assert plan.groups[1].after == (156 - 52) // 13
    assert [line for line in plan.kept_whole if "0.weight[0]: its size is computed in the code (reshape)" in line]


BESIDE_MASKS: dict[str, Any] = {
    "sparsity": 0.5,
    "budget": Budget(macs=0.5),
    "score": random,
    "scope": "global",
    "round_to": 4,
    "min_units": 3,
    "by_row": False,
    "overrides": {"0": 0.5},
    "latency_table": LatencyTable(()),
}


@pytest.mark.parametrize("option", BESIDE_MASKS)
def test_what_says_which_units_go_is_refused_beside_masks(option: str) -> None:
    model = mlp()
    masks = prune_(model, sparsity=0.5, pattern=Channel())
    before = state_of(model)
    with pytest.raises(InvalidInputError, match=rf"masks say which units go(?s:.*){option.replace('_', ' ')}: "):
        shrink_(model, X, masks=masks, **{option: BESIDE_MASKS[option]})
    assert is_unchanged(model, before)


def test_every_option_is_asked_for_its_meaning_beside_masks() -> None:
    others = {"model", "example_inputs", "ignore", "coupling", "masks"}
    assert inspect.signature(plan_shrink).parameters.keys() - others == BESIDE_MASKS.keys()


def test_wrapped_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapper(nn.Sequential):
        pass

    monkeypatch.setattr(_compat, "wrappers", lambda: {Wrapper: "it keeps buckets of the old size"})
    model = Wrapper(mlp())
    before = state_of(model)
    with pytest.raises(UnsupportedError, match="inside Wrapper: it keeps buckets"):
        shrink_(model, X, sparsity=0.5)
    assert is_unchanged(model, before)
