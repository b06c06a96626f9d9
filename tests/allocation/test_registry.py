from __future__ import annotations

import inspect
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur._errors import InfeasibleError, InvalidInputError
from secateur.allocation import ALLOCATIONS, Allocation, Units

every_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS.values(), ids=ALLOCATIONS.keys())


def units() -> dict[str, Units]:
    shapes = {"conv.weight": (6, 3, 3, 3), "fc.weight": (20, 10), "scale": (), "none": (0, 4), "bias": (12,)}
    return {name: Units(torch.randn(torch.Size(s).numel()), torch.Size(s)) for name, s in shapes.items()}


@every_allocation
@pytest.mark.parametrize("sparsity", [0.1, 0.45, 0.3])
def test_allocation_answers_for_every_name_in_order(allocation: Allocation, sparsity: float) -> None:
    given = units()
    removed = allocation(given, sparsity)
    assert list(removed) == list(given)
    for name, count in removed.items():
        assert isinstance(count, int)
        assert 0 <= count <= max(0, given[name].num_units - 1)
    total = sum(each.num_units for each in given.values())
    # uniform rounds each tensor by itself, the others the total
    assert sum(removed.values()) == pytest.approx(sparsity * total, abs=len(given) / 2)


@every_allocation
def test_allocation_removes_nothing_at_sparsity_zero(allocation: Allocation) -> None:
    assert set(allocation(units(), 0.0).values()) == {0}


@every_allocation
def test_allocation_of_nothing_is_nothing(allocation: Allocation) -> None:
    assert allocation({}, 0.9) == {}


@every_allocation
def test_allocation_leaves_scores_alone(allocation: Allocation) -> None:
    given = units()
    before = {name: each.scores.clone() for name, each in given.items()}
    allocation(given, 0.4)
    for name, each in given.items():
        assert torch.equal(each.scores, before[name])


@every_allocation
@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1, 5, math.nan, math.inf, "0.5"])
def test_allocation_refuses_a_sparsity_outside_zero_to_one(allocation: Allocation, sparsity: float) -> None:
    with pytest.raises(InvalidInputError, match=r"sparsity must be a number in \[0, 1\).*\n  sparsity: "):
        allocation(units(), sparsity)


@every_allocation
def test_allocation_refuses_to_be_left_without_a_sparsity(allocation: Allocation) -> None:
    with pytest.raises(InvalidInputError, match="sparsity"):
        allocation(units(), None)


@every_allocation
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    sparsity=st.floats(0, 1, exclude_max=True),
    protected=st.none() | st.integers(0, 3),
)
def test_allocation_empties_no_tensor_or_says_that_it_would(
    allocation: Allocation, sizes: list[int], sparsity: float, protected: int | None
) -> None:
    given = {str(i): Units(torch.rand(size), torch.Size([size])) for i, size in enumerate(sizes)}
    if protected is not None and "min_units" in inspect.signature(allocation).parameters:
        allocation = partial(allocation, min_units=protected)
    else:
        protected = 1
    try:
        removed, refusal = allocation(given, sparsity), ""
    except InfeasibleError as error:
        removed, refusal = dict.fromkeys(given, 0), str(error)
    assert not refusal or "would remove every unit of" in refusal or "cannot remove" in refusal
    for size, gone in zip(sizes, removed.values(), strict=True):
        assert gone == 0 or size - gone >= max(protected, 1)
