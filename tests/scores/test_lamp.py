from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import allocation, prune_, scores
from secateur.scores import lamp


def by_hand(weights: list[float]) -> list[float]:
    """The paper's definition in plain loops; of equal sizes the earlier position is the smaller one."""
    ranks = sorted(range(len(weights)), key=lambda i: (abs(weights[i]), i))
    found = [0.0] * len(weights)
    for place, u in enumerate(ranks):
        rivals = sum(weights[v] ** 2 for v in ranks[place:])
        found[u] = weights[u] ** 2 / rivals if rivals else 0.0
    return found


@given(st.lists(st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 2)), min_size=1, max_size=30))
def test_lamp_is_the_share_of_what_would_be_left(weights: list[float]) -> None:
    found = lamp({"a": torch.tensor(weights, dtype=torch.float64)})["a"]
    assert found.tolist() == pytest.approx(by_hand(weights), rel=1e-12)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0]), min_size=1, max_size=30))
def test_lamp_keeps_the_order_of_magnitude_and_of_positions(weights: list[float]) -> None:
    found = lamp({"a": torch.tensor(weights)})["a"].tolist()
    expected = sorted(range(len(weights)), key=lambda i: (abs(weights[i]), i))
    assert sorted(range(len(weights)), key=lambda i: (found[i], i)) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("levels", [None, 1, 20])
def test_lamp_is_the_same_in_double_precision(dtype: torch.dtype, levels: int | None) -> None:
    weight = torch.randn(3000) if levels is None else torch.randn(3000).mul(levels).round()
    narrow = weight.to(dtype)
    assert torch.equal(lamp({"a": narrow})["a"], lamp({"a": narrow.double()})["a"])


def test_lamp_keeps_one_weight_of_each_tensor_to_the_end() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False))
    torch.nn.init.constant_(model[0].weight, 1e-3)
    torch.nn.init.constant_(model[1].weight, 1e3)
    global_without_floor = lambda units, sparsity: allocation.global_(units, sparsity, min_units=0)  # noqa: E731
    masks = prune_(model, sparsity=18 / 20, score=scores.lamp, allocation=global_without_floor)
    assert [int(mask.sum()) for mask in masks.values()] == [1, 1]


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [([3e38, -3e38, 1e38], torch.float32), ([1e-40, 2e-40], torch.float32), ([6e4, 2e4], torch.float16)],
)
def test_lamp_neither_overflows_nor_vanishes(weights: list[float], dtype: torch.dtype) -> None:
    values = torch.tensor(weights, dtype=dtype)
    largest = float(values.abs().max())
    found = lamp({"a": values})["a"]
    assert found.tolist() == pytest.approx(by_hand([w / largest for w in values.tolist()]))


def test_lamp_of_nothing_but_zeros_is_zero() -> None:
    assert lamp({"a": torch.tensor([[0.0, -0.0]])})["a"].tolist() == [[0.0, 0.0]]


def test_lamp_of_a_weight_that_is_nan_is_refused_when_it_is_used() -> None:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="cannot rank the scores of 'weight'"):
        prune_(model, sparsity=0.5, score=lamp)
    assert torch.equal(model.weight.isnan(), before.isnan())
