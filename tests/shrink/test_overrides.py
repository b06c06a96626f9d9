"""What holds for single groups: which groups a name means, what can be said of them, and contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import analyze
from secateur.shrink import Budget, GroupOverride, Scope, l2, plan_of, plan_shrink
from tests.shrink.models import is_unchanged, randomized, state_of


class Model(nn.Module):
    """An embedding, a residual stream, a branch, and a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 12)
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)
        self.stack = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.stack(x + self.down(torch.relu(self.up(x))))


X = torch.tensor([[0, 3, 1]])
BEFORE = {"embed.weight[1]": 12, "up.weight[0]": 20, "stack.0.weight[0]": 16, "stack.2.weight[0]": 10}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomized(Model())


def lost(model: nn.Module, **kwargs: Any) -> dict[str, int]:
    """How many units each group loses, without those that lose none."""
    groups = plan_shrink(model, X, **kwargs).groups
    assert {group.name: group.before for group in groups} == BEFORE
    return {group.name: group.before - group.after for group in groups if group.after < group.before}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("up", {"up.weight[0]": 10}),
        ("up.weight", {"up.weight[0]": 10}),
        ("up.weight[0]", {"up.weight[0]": 10}),
        ("up[1]", {"embed.weight[1]": 6}),
        ("down", {"embed.weight[1]": 6}),
        ("embed.weight[1]", {"embed.weight[1]": 6}),
        ("embed[1]", {"embed.weight[1]": 6}),
        ("stack.*", {"stack.0.weight[0]": 8, "stack.2.weight[0]": 5}),
        ("stack.[02].*", {"stack.0.weight[0]": 8, "stack.2.weight[0]": 5}),
        ("stack.*.weight[1]", {"embed.weight[1]": 6, "stack.0.weight[0]": 8, "stack.2.weight[0]": 5}),
        (nn.Linear, {"embed.weight[1]": 6, "up.weight[0]": 10, "stack.0.weight[0]": 8, "stack.2.weight[0]": 5}),
    ],
    ids=str,
)
def test_a_name_means_the_groups_of_a_dim_of_its_tensors(model: nn.Module, name: Any, expected: dict[str, int]) -> None:
    assert lost(model, sparsity=0.0, overrides={name: 0.5}) == expected


def test_tied_tensors_are_known_by_all_their_names() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 2))
    model[3].weight = model[1].weight
    found = [plan_shrink(model, torch.zeros(1, 3), sparsity=0.0, overrides={f"{i}.weight": 0.5}) for i in (1, 3)]
    assert found[0] == found[1]
    assert [group.after for group in found[0].groups] == [3]


def test_every_value_can_be_another_one(model: nn.Module) -> None:
    overrides = {
        "up": GroupOverride(sparsity=0.9, min_units=7),
        "stack.0": GroupOverride(round_to=6),
        "stack.2": GroupOverride(sparsity=0.3, round_to=1),
    }
    # multiples of 4: 8 of 20 stay, as 4 would be below min_units; 8 of 12 stay, as near to the half as 4
    expected = {"embed.weight[1]": 4, "up.weight[0]": 12, "stack.0.weight[0]": 10, "stack.2.weight[0]": 3}
    assert lost(model, sparsity=0.5, round_to=4, overrides=overrides) == expected


def test_what_several_overrides_say_of_one_group_is_put_together(model: nn.Module) -> None:
    overrides = {"stack.*": GroupOverride(min_units=6), "stack.0": 0.9, "stack.0.weight": 0.9}
    assert lost(model, sparsity=0.8, overrides=overrides) == {
        "embed.weight[1]": 10,
        "up.weight[0]": 16,
        "stack.0.weight[0]": 10,
        "stack.2.weight[0]": 4,
    }


@pytest.mark.parametrize("share", [None, 0.5])
def test_groups_can_compete_among_themselves(model: nn.Module, share: float | None) -> None:
    coupling = analyze(model, X)
    groups = {group.name: group for group in coupling.groups}
    scores = l2(model, coupling)
    both = [groups["stack.0.weight[0]"], groups["stack.2.weight[0]"]]
    relative = {unit: scores[unit] / np.mean(scores[list(g.units)]) for g in both for unit in g.units}
    expected = sorted(relative, key=relative.__getitem__)[:13]
    if share is None:
        for name, number in (("up.weight[0]", 10), ("embed.weight[1]", 6)):
            expected += sorted(groups[name].units, key=lambda unit: scores[unit])[:number]
    override = GroupOverride(sparsity=share, scope=Scope.GLOBAL)
    plan = plan_shrink(
        model, X, sparsity=0.0 if share else 0.5, min_units=1, overrides={"stack.*": override}, coupling=coupling
    )
    assert plan == plan_of(model, coupling, expected)


def test_groups_can_keep_out_of_the_competition_of_all_others(model: nn.Module) -> None:
    for scale in (1e-3, 1e3):  # however the others score, the group loses its half
        with torch.no_grad():
            model.up.weight[:10].mul_(scale)
        found = lost(model, sparsity=0.5, scope="global", overrides={"up": GroupOverride(scope="per_group")})
        assert found["up.weight[0]"] == 10
        assert sum(found.values()) == 10 + round(0.5 * (12 + 16 + 10))


def test_with_a_budget_an_override_of_the_sparsity_holds_and_the_others_meet_it(model: nn.Module) -> None:
    plan = plan_shrink(model, X, budget=Budget(params=0.5), overrides={"up": 0.1, "stack.2": 0.0})
    after = {group.name: group.after for group in plan.groups}
    assert (after["up.weight[0]"], after["stack.2.weight[0]"]) == (18, 10)
    assert plan.parameters[1] <= 0.5 * plan.parameters[0]


WRONG: dict[str, tuple[dict[Any, Any], str]] = {
    "misspelt": ({"upp": 0.5}, "'upp' matches no parameter"),
    "no group": ({"stack.4": 0.5}, r"'stack.4' means no group of units along dim 0(?s:.*)output of the model"),
    "other dim": ({"embed": 0.5}, r"'embed' means no group(?s:.*)units along: embed.weight\[1\]"),
    "no such dim": ({"up[2]": 0.5}, r"'up\[2\]' means no group of units along dim 2"),
    "contradiction": ({"up": 0.5, "up.weight": 0.4}, r"contradict(?s:.*)one: 'up': 0.5    other: 'up.weight': 0.4"),
    "competitors": (
        {"*": GroupOverride(scope="global"), "stack.*": GroupOverride(scope="global")},
        "contradict(?s:.*)another scope",
    ),
    "sparsity": ({"up": 1.0}, r"in \[0, 1\)"),
    "no number": ({"up": "half"}, r"in \[0, 1\)"),
    "no name": ({0.5: 0.5}, "globs over their names or by module types"),
    "no mapping": (["up"], "overrides say what holds for which groups"),
    "no such group": ({30: 0.5}, r"no group of this number(?s:.*)group: 30"),
    "no number of a group": ({(0, True): 0.5}, r"no group of this number(?s:.*)group: True"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_overrides_are_refused_and_change_nothing(model: nn.Module, what: str) -> None:
    before = state_of(model)
    overrides, message = WRONG[what]
    with pytest.raises(InvalidInputError, match=message):
        plan_shrink(model, X, sparsity=0.5, overrides=overrides)
    assert is_unchanged(model, before)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sparsity": -0.1}, r"in \[0, 1\)"),
        ({"sparsity": True}, r"in \[0, 1\)"),
        ({"min_units": 0}, "at least 1"),
        ({"min_units": 1.5}, "at least 1"),
        ({"round_to": 0}, "positive integer"),
        ({"scope": "both"}, "'both' is no scope"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        GroupOverride(**values)
