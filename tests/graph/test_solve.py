"""The solution against the facts: whatever goes, every equation, product and block still holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.graph.labels import Axis, Labels
from secateur.graph.solve import FIXED, Solution, solve


def gone_at(solution: Solution, axis: Axis, gone: np.ndarray) -> np.ndarray:
    return ~solution.kept((axis,), gone)


def assert_facts_hold(labels: Labels, solution: Solution, gone: np.ndarray) -> None:
    """The meaning of each fact, written out."""
    at = gone[solution.class_of]
    for one, other in labels.equations:
        assert (at[one] == at[other]).all()
    for definition in labels.definitions:
        outer, inner = (gone_at(solution, part, gone) for part in definition.parts)
        assert (gone_at(solution, definition.whole, gone) == (outer[:, None] | inner[None]).reshape(-1)).all()
    for block in labels.blocks:
        assert not at[block.atoms].any()


@given(st.data())
def test_solution_agrees_with_all_facts(data: st.DataObject) -> None:
    labels = Labels()
    axes = [
        labels.fresh(size) for size in data.draw(st.lists(st.sampled_from([2, 3, 4, 6, 8, 12]), max_size=5, min_size=2))
    ]
    for _ in range(data.draw(st.integers(1, 7))):
        one = data.draw(st.sampled_from(axes))
        what = data.draw(st.sampled_from(["equal", "split", "merge", "part", "join", "block", "outside"]))
        if what == "equal":
            other = data.draw(st.sampled_from([axis for axis in axes if axis.size == one.size]))
            labels.equal((one,), (other,))
        elif what == "split":
            outer = data.draw(st.sampled_from([n for n in range(1, one.size + 1) if one.size % n == 0]))
            axes += [axis for axis in labels.split(one, outer) if axis.size > 1]
        elif what == "merge":
            axes.append(labels.merge((one, data.draw(st.sampled_from([*axes, labels.fixed(2)])))))
        elif what == "part":
            axes += labels.part((one,), 0, data.draw(st.integers(1, one.size)))
        elif what == "join":
            axes += labels.joined([(one,), (data.draw(st.sampled_from(axes)),)])
        elif what == "block":
            labels.block(labels.part((one,), 0, max(2, one.size // 2)), "said so")
        else:
            labels.equal((one,), (labels.fixed(one.size),))
    solution = solve(labels)
    units = np.nonzero(solution.is_unit)[0].tolist()
    for unit in units:
        gone = solution.removed([unit])
        assert gone[unit]
        assert_facts_hold(labels, solution, gone)
    chosen = data.draw(st.lists(st.sampled_from(units), unique=True)) if units else []
    assert_facts_hold(labels, solution, solution.removed(chosen))


def test_labels_without_facts_are_units() -> None:
    labels = Labels()
    labels.fresh(3)
    solution = solve(labels)
    assert solution.is_unit.tolist() == [True] * 3
    assert solution.why == {}


def test_position_of_a_product_goes_with_its_row_or_column() -> None:
    labels = Labels()
    whole = labels.fresh(6)
    rows, columns = labels.split(whole, 2)
    solution = solve(labels)
    assert solution.is_unit.sum() == 5
    row, column = int(solution.classes(rows)[0]), int(solution.classes(columns)[2])
    gone = solution.removed([row, column])
    assert solution.kept((whole,), gone).tolist() == [False, False, False, True, True, False]
    assert solution.kept((rows, columns), gone).tolist() == solution.kept((whole,), gone).tolist()


def test_block_of_a_product_keeps_its_rows_and_columns() -> None:
    labels = Labels()
    whole = labels.fresh(6)
    rows, columns = labels.split(whole, 2)
    labels.block(labels.part((whole,), 0, 2), "said so")
    solution = solve(labels)
    assert solution.blocked[solution.classes(rows)].tolist() == [True, False]
    assert solution.blocked[solution.classes(columns)].tolist() == [True, True, False]


def test_reason_is_the_first_one() -> None:
    labels = Labels()
    axis = labels.fresh(2)
    labels.block((axis,), "first")
    labels.block((axis,), "second")
    assert set(solve(labels).why.values()) == {"first"}


def test_product_with_a_size_from_outside_keeps_the_other_view_of_it() -> None:
    labels = Labels()
    whole = labels.fresh(6)
    labels.split(whole, 3)
    labels.equal((whole,), (labels.merge((labels.fresh(3), labels.fixed(2))),))
    solution = solve(labels)
    assert "it is seen as a product with a size given from outside" in solution.why.values()
    assert solution.is_unit.sum() == 3


def test_label_that_would_depend_on_itself_stays() -> None:
    labels = Labels()
    whole = labels.fresh(4)
    rows, columns = labels.split(whole, 2)
    labels.equal((rows,), labels.part((whole,), 0, 2))
    solution = solve(labels)
    for unit in np.nonzero(solution.is_unit)[0].tolist():
        assert_facts_hold(labels, solution, solution.removed([unit]))
    assert solution.blocked[solution.classes(columns)].any()


def test_fixed_axis_has_no_classes() -> None:
    labels = Labels()
    axis = labels.fixed(3)
    solution = solve(labels)
    assert solution.classes(axis).tolist() == [FIXED] * 3
    assert solution.kept((axis,), solution.removed([])).all()
    assert solution.kept((), solution.removed([])).tolist() == [True]


@pytest.mark.parametrize("length", [1, 30])
def test_chain_of_products_is_followed_to_its_end(length: int) -> None:
    labels = Labels()
    axis = labels.fresh(2)
    whole = axis
    for _ in range(length):
        whole = labels.merge((labels.fixed(1), whole, labels.fresh(1), labels.fixed(1)))
        product = labels.merge((whole, labels.fixed(2)))
        whole = labels.part((product,), 0, 4, 2)[0]
    solution = solve(labels)
    gone = solution.removed([int(solution.classes(axis)[1])])
    assert solution.kept((whole,), gone).tolist() == [True, False]
