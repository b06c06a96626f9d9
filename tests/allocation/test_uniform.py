from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur._errors import InfeasibleError, InvalidInputError
from secateur.allocation import Units, uniform


def units(**sizes: int) -> dict[str, Units]:
    return {name: Units(torch.rand(n), torch.Size([n])) for name, n in sizes.items()}


@pytest.mark.parametrize(
    ("count", "sparsity", "removed"),
    [(17, 0.4, 7), (2, 0.6, 1), (10, 0.9, 9), (100, 0.29, 29), (5, 0.5, 2), (7, 0.5, 4), (3, 0.0, 0), (0, 0.9, 0)],
)
def test_uniform_rounds_to_the_nearest_count(count: int, sparsity: float, removed: int) -> None:
    assert uniform(units(a=count), sparsity) == {"a": removed}


def test_uniform_counts_units_not_entries() -> None:
    rows = Units(torch.rand(4), torch.Size([4, 100]), 100)
    assert uniform({"a": rows}, 0.5) == {"a": 2}


def test_uniform_refuses_to_empty_a_tensor() -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"uniform sparsity 0\.9 would remove every unit of 'b', 'c'\.\n  units: \{'b': 3, 'c': 1\}",
    ):
        uniform(units(a=10, b=3, c=1), 0.9)


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    sparsity=st.floats(0, 1, exclude_max=True),
    min_units=st.integers(1, 4),
)
def test_uniform_makes_up_for_what_it_protects(sizes: list[int], sparsity: float, min_units: int) -> None:
    given = units(**{f"layer{i}": size for i, size in enumerate(sizes)})
    wanted = [round(sparsity * size) for size in sizes]
    room = [max(size - min_units, 0) for size in sizes]
    if sum(wanted) > sum(room):
        with pytest.raises(InfeasibleError, match=rf"keep {min_units} in each of {len(sizes)} tensors"):
            uniform(given, sparsity, min_units=min_units)
        return
    removed = list(uniform(given, sparsity, min_units=min_units).values())
    assert sum(removed) == sum(wanted)
    assert all(0 <= gone <= most for gone, most in zip(removed, room, strict=True))
    if all(count <= most for count, most in zip(wanted, room, strict=True)):
        assert removed == wanted


def test_uniform_takes_what_it_protects_from_others_by_their_size() -> None:
    # 3 of 3 and 8 of 9 would go (0.9); the one that stays costs the others one more, in proportion
    assert uniform(units(a=3, b=9, c=90), 0.9, min_units=1) == {"a": 2, "b": 8, "c": 82}


@pytest.mark.parametrize("min_units", [-1, 1.5, "1", None], ids=str)
def test_uniform_refuses_min_units_that_are_no_number_of_units(min_units: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"whole number, and not negative\.\n  min units: {min_units!r}"):
        uniform(units(a=3), 0.5, min_units=min_units)
