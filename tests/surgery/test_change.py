"""One tensor's planned change."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur.surgery import Change, Selection


def change(*selections: Selection, shape: tuple[int, ...] = (4, 6)) -> Change:
    return Change("fc.weight", torch.zeros(shape), selections, ("head.weight",))


def test_names_begin_with_the_first() -> None:
    assert change().names == ("fc.weight", "head.weight")


def test_new_shape_counts_kept_and_new_positions() -> None:
    planned = change(Selection(1, 6, torch.arange(4)), Selection(0, 4, torch.arange(4), num_new=3))
    assert planned.old_shape == (4, 6)
    assert planned.new_shape == (7, 4)


def test_along_counts_negative_dims_from_the_end() -> None:
    columns = Selection(1, 6, torch.arange(4))
    assert change(columns).along(-1) is columns
    assert change(columns).along(0) is None


def test_growth_is_a_ratio_of_sizes() -> None:
    planned = change(Selection(1, 6, torch.arange(3)))
    assert planned.growth(-1) == 0.5
    assert planned.growth(0) == 1.0


@given(st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_take_indexes_all_dims(rows: set[int], columns: set[int]) -> None:
    values = torch.arange(24.0).view(4, 6)
    planned = change(
        Selection(1, 6, torch.tensor(sorted(columns))), Selection(0, 4, torch.tensor(sorted(rows)), num_new=1)
    )
    expected = [[6.0 * r + c for c in sorted(columns)] for r in sorted(rows)] + [[9.0] * len(columns)]
    assert planned.take(values, fill=9.0).tolist() == expected


def test_take_value_uses_the_values_asked_for() -> None:
    planned = change(Selection(0, 4, torch.arange(1), num_new=1, init=torch.full((1, 6), 5.0)))
    assert planned.take_value(torch.zeros(4, 6)).tolist() == [[0.0] * 6, [5.0] * 6]
