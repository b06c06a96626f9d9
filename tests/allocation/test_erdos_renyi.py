from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from secateur._errors import InfeasibleError
from secateur.allocation import Units, erdos_renyi, erk
from secateur.patterns import Block, Channel

Shape = tuple[int, ...]


def units(shapes: list[Shape]) -> dict[str, Units]:
    return {str(i): Units(torch.zeros(torch.Size(s).numel()), torch.Size(s)) for i, s in enumerate(shapes)}


def densities_as_published(shapes: list[Shape], kept: int) -> list[Fraction]:
    """Solve for epsilon; whoever exceeds density 1 becomes dense and the others are solved again; exact arithmetic."""
    sizes = [torch.Size(s).numel() for s in shapes]
    raw = [Fraction(sum(s), n) for s, n in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        rest = [i for i in range(len(shapes)) if i not in dense]
        left = kept - sum(sizes[i] for i in dense)
        epsilon = left / sum(raw[i] * sizes[i] for i in rest) if rest else Fraction(0)
        over = {i for i in rest if epsilon * raw[i] > 1}
        if not over:
            return [Fraction(1) if i in dense else epsilon * raw[i] for i in range(len(shapes))]
        dense |= over


def test_erk_caps_dense_layers_and_solves_the_rest_again() -> None:
    shapes = [(16, 3, 3, 3), (32, 16, 3, 3), (32, 16, 1, 1), (64, 32, 3, 3), (10, 64)]
    removed = erk(units(shapes), 0.8)
    kept = [torch.Size(s).numel() - n for s, n in zip(shapes, removed.values(), strict=True)]
    assert sum(kept) == 4925
    assert kept[0] == 432
    assert kept[2] == 512
    assert kept[4] == 640
    # the other two share 4925 - 1584 = 3341 as (32 + 16 + 6) : (64 + 32 + 6) = 54 : 102
    assert kept[1] == pytest.approx(3341 * 54 / 156, abs=1)
    assert kept[3] == pytest.approx(3341 * 102 / 156, abs=1)


@given(
    shapes=st.lists(
        st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple).filter(lambda s: torch.Size(s).numel() < 3000),
        min_size=1,
        max_size=6,
    ),
    sparsity=st.floats(0, 1, exclude_max=True),
)
def test_erk_agrees_with_the_published_loop_within_one_weight(shapes: list[Shape], sparsity: float) -> None:
    sizes = [torch.Size(s).numel() for s in shapes]
    kept_total = sum(sizes) - round(sparsity * sum(sizes))
    expected = [d * n for d, n in zip(densities_as_published(shapes, kept_total), sizes, strict=True)]
    assume(min(expected) >= 1)
    kept = [n - gone for n, gone in zip(sizes, erk(units(shapes), sparsity).values(), strict=True)]
    assert sum(kept) == kept_total
    for got, wanted in zip(kept, expected, strict=True):
        assert abs(got - wanted) < 1 + 1e-9


def test_erk_shares_fractions_out_by_largest_remainder() -> None:
    # 10 of 160 kept as 20 : 11 : 10 : 10, i.e. 3.92, 2.16, 1.96, 1.96: whole parts 3, 2, 1, 1; three are left over
    removed = erk(units([(10, 10)] + [(10, 1)] + [(5, 5)] * 2), 0.9375)
    assert removed == {"0": 96, "1": 8, "2": 23, "3": 23}


def test_erk_leaves_a_unit_in_each_tensor() -> None:
    # by the formula alone the small one would keep 20 * 2 / (2 + 200) = 0.2
    assert erk(units([(1, 1), (100, 100)]), 0.998) == {"0": 0, "1": 9981}


@pytest.mark.parametrize("min_units", [2, 5])
def test_erk_leaves_as_many_units_as_asked_and_still_meets_the_total(min_units: int) -> None:
    removed = erk(units([(4, 1), (100, 100)]), 0.998, min_units=min_units)
    assert removed["0"] == 4 - min(min_units, 4)
    assert sum(removed.values()) == round(0.998 * 10004)


def test_erk_without_protection_refuses_to_empty_a_tensor() -> None:
    # 20 units are kept as 2 : 200, so of the small one 0.2
    with pytest.raises(InfeasibleError, match=r"sparsity 0\.998 would remove every unit of '0'\.\n[\s\S]*min_units=1"):
        erk(units([(1, 1), (100, 100)]), 0.998, min_units=0)
    assert erk(units([(10, 10), (100, 100)]), 0.9, min_units=0) == erk(units([(10, 10), (100, 100)]), 0.9)


def test_erk_counts_units_of_a_pattern() -> None:
    shapes = {"a": torch.Size([8, 4]), "b": torch.Size([16, 2])}
    rows = {n: Units(torch.zeros(s[0]), s, Channel(0).unit_size(s)) for n, s in shapes.items()}
    # densities as 12/32 : 18/32 for 8 : 16 rows, so 16 rows are kept as 3 : 9
    assert erk(rows, 1 / 3) == {"a": 4, "b": 4}


def test_erk_counts_smaller_blocks_as_units() -> None:
    shapes = {"a": torch.Size([5, 8]), "b": torch.Size([8, 4])}
    block = Block((3, 3))
    counted = {n: Units(block.reduce(torch.rand(s)), s, block.unit_size(s)) for n, s in shapes.items()}
    assert [each.num_units for each in counted.values()] == [6, 6]
    # 6 of 12 are kept as 13/40 : 12/32, i.e. 2.79 : 3.21
    assert erk(counted, 0.5) == {"a": 3, "b": 3}


def test_erdos_renyi_leaves_the_kernel_out() -> None:
    # kept as (4 + 8) * 9 : (16 + 8), with the kernel as (4 + 8 + 6) : (16 + 8)
    shapes = [(4, 8, 3, 3), (16, 8)]
    assert erdos_renyi(units(shapes), 0.9) == {"0": 288 - 34, "1": 128 - 8}
    assert erk(units(shapes), 0.9) == {"0": 288 - 18, "1": 128 - 24}


def test_erdos_renyi_equals_erk_for_matrices() -> None:
    shapes = [(30, 20), (7, 30), (3, 7)]
    assert erdos_renyi(units(shapes), 0.7) == erk(units(shapes), 0.7)


def test_erk_refuses_to_keep_fewer_units_than_tensors() -> None:
    with pytest.raises(
        InfeasibleError, match=r"cannot remove 11 units and keep 1 in each of 3 tensors\.\n  asked: 11    removable: 9"
    ):
        erk(units([(2, 2)] * 3), 0.9)
