"""Views of products of axes: positions keep their row-major order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.graph.labels import Labels, size_of
from secateur.graph.reshaping import reshape
from secateur.graph.solve import solve
from tests.graph.oracle import go_together


@pytest.mark.parametrize(
    ("before", "after"),
    [((4, 6), (24,)), ((24,), (2, 3, 4)), ((4, 6), (8, 3)), ((6, 4), (4, 6)), ((2, 3, 4), (6, 4)), ((6,), (1, 6, 1))],
)
def test_reshape_keeps_positions_in_row_major_order(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    labels = Labels()
    dims = tuple(labels.fresh_dim(size) for size in before)
    result = reshape(labels, dims, after)
    assert result is not None
    assert tuple(size_of(dim) for dim in result) == after
    assert go_together(labels, *(tuple(axis for dim in several for axis in dim) for several in (dims, result)))


def test_reshape_to_another_number_of_positions_is_impossible() -> None:
    labels = Labels()
    assert reshape(labels, (labels.fresh_dim(6),), (4,)) is None
    assert reshape(labels, (labels.fresh_dim(5), labels.fresh_dim(3)), (4, 4)) is None


def test_reshape_of_an_empty_tensor_keeps_dims_behind() -> None:
    labels = Labels()
    width = labels.fresh_dim(5)
    assert reshape(labels, (labels.fixed_dim(0), labels.fixed_dim(2), width), (0, 5)) == (labels.fixed_dim(0), width)
    assert reshape(labels, (labels.fixed_dim(0), width), (5, 0)) is None


@given(st.data())
def test_reshape_there_and_back_frees_the_same_units(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.integers(2, 3), min_size=2, max_size=4))
    at = data.draw(st.lists(st.booleans(), min_size=len(factors) - 1, max_size=len(factors) - 1))
    sizes = [factors[0]]
    for factor, cut in zip(factors[1:], at, strict=True):
        sizes = [*sizes, factor] if cut else [*sizes[:-1], sizes[-1] * factor]
    labels = Labels()
    dims = tuple(labels.fresh_dim(size) for size in sizes)
    middle = reshape(labels, dims, factors)
    assert middle is not None
    back = reshape(labels, middle, sizes)
    assert back is not None
    for mine, theirs in zip(dims, back, strict=True):
        labels.equal(mine, theirs)
    assert solve(labels).is_unit.sum() == sum(factors)
