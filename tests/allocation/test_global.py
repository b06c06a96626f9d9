from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur._errors import InfeasibleError, InvalidInputError
from secateur._units import lowest
from secateur.allocation import Units, global_
from secateur.patterns import Channel

Scores = dict[str, list[float]]


def units(scores: Scores) -> dict[str, Units]:
    return {name: Units(torch.tensor(values), torch.Size([len(values)])) for name, values in scores.items()}


def by_walking(scores: Scores, total: int, min_units: int) -> dict[str, int]:
    """Take one unit after the other, the lowest first, from whichever tensor can still give one."""
    removed = dict.fromkeys(scores, 0)
    for _, name in sorted(((s, name) for name, values in scores.items() for s in values), key=lambda pair: pair[0]):
        if sum(removed.values()) < total and removed[name] < len(scores[name]) - min_units:
            removed[name] += 1
    return removed


@given(
    values=st.lists(
        st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.1, 0.2, 0.3, 1.0, math.inf]), max_size=8),
        min_size=1,
        max_size=5,
    ),
    sparsity=st.floats(0, 1, exclude_max=True),
    min_units=st.integers(0, 3),
)
def test_global_removes_the_lowest_that_may_go(values: list[list[float]], sparsity: float, min_units: int) -> None:
    scores = {f"layer{i}": v for i, v in enumerate(values)}
    total = round(sparsity * sum(map(len, values)))
    expected = by_walking(scores, total, min_units)
    allocate = partial(global_, min_units=min_units)
    if sum(expected.values()) < total or (min_units == 0 and any(n == len(scores[k]) > 0 for k, n in expected.items())):
        with pytest.raises(InfeasibleError, match=r"cannot remove|would remove every unit"):
            allocate(units(scores), sparsity)
    else:
        assert allocate(units(scores), sparsity) == expected


def test_global_settles_ties_by_the_order_of_names() -> None:
    assert global_(units({"b": [1.0, 1.0, 1.0], "a": [1.0, 1.0, 1.0]}), 0.5) == {"b": 2, "a": 1}


def test_global_compares_scores_of_different_dtypes() -> None:
    mixed = {
        "half": Units(torch.tensor([0.5, 4.0], dtype=torch.bfloat16), torch.Size([2])),
        "double": Units(torch.tensor([0.25, 0.5 + 1e-12], dtype=torch.float64), torch.Size([2])),
    }
    assert global_(mixed, 0.5) == {"half": 1, "double": 1}


def test_global_leaves_a_unit_in_each_layer_and_still_meets_the_total() -> None:
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        net[2].weight.mul_(1e-3)
    rows = Channel(dim=0)
    hidden = {name: net.get_parameter(name).detach() for name in ("0.weight", "2.weight")}
    layers = {n: Units(rows.reduce(w.abs()), w.shape, rows.unit_size(w.shape)) for n, w in hidden.items()}
    removed = global_(layers, 0.5)
    assert removed == {"0.weight": 1, "2.weight": 31}
    kept = lowest(layers["2.weight"].scores, 31)
    assert kept.nonzero().item() == hidden["2.weight"].norm(dim=1).argmax()
    with pytest.raises(
        InfeasibleError,
        match=r"global sparsity 0\.5 would remove every unit of '2\.weight'\.\n  units: \{'2\.weight': 32\}",
    ):
        global_(layers, 0.5, min_units=0)


def test_global_refuses_what_the_protected_units_leave_no_room_for() -> None:
    scores = {"a": [1.0, 2.0, 3.0], "b": [4.0]}
    with pytest.raises(
        InfeasibleError, match=r"cannot remove 3 units and keep 1 in each of 2 .*\n  asked: 3    removable: 2"
    ):
        global_(units(scores), 0.75)


@pytest.mark.parametrize("min_units", [-1, 1.5, "1", None], ids=str)
def test_global_refuses_min_units_that_are_no_number_of_units(min_units: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"whole number, and not negative\.\n  min units: {min_units!r}"):
        global_(units({"a": [1.0, 2.0]}), 0.5, min_units=min_units)


def test_global_refuses_nan_scores_by_name() -> None:
    with pytest.raises(InvalidInputError, match=r"scores of 'b': some are NaN"):
        global_(units({"a": [1.0, 2.0], "b": [math.nan, 1.0]}), 0.5)
