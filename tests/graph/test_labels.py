"""Labels: what parts, products and views of dims are, position by position."""

from __future__ import annotations

import numpy as np
import pytest

from secateur.graph.labels import Axis, Labels, size_of
from secateur.graph.solve import solve
from tests.graph.oracle import go_together


def atoms(axis: Axis) -> list[int]:
    return axis.atoms.tolist()


def test_fresh_axes_share_no_label() -> None:
    labels = Labels()
    one, other = labels.fresh(3), labels.fresh(2)
    assert atoms(one) == [0, 1, 2]
    assert atoms(other) == [3, 4]
    assert labels.num_atoms == 5


def test_dim_of_size_one_is_the_empty_product() -> None:
    labels = Labels()
    assert labels.fresh_dim(1) == labels.fixed_dim(1) == labels.counted_dim(1) == ()
    assert size_of(()) == 1


def test_fixed_axes_cost_no_labels() -> None:
    labels = Labels()
    assert labels.fixed_dims((4, 1, 4)) == ((labels.fixed(4),), (), (labels.fixed(4),))
    assert labels.num_atoms == 0


def test_equal_cuts_products_to_their_common_refinement() -> None:
    labels = Labels()
    whole, rows, columns = labels.fresh(12), labels.fresh(3), labels.fresh(4)
    labels.equal((whole,), (rows, columns))
    assert labels.split(whole, 3)[0].size == 3
    gone = solve(labels).removed([int(solve(labels).classes(rows)[1])])
    assert solve(labels).kept((whole,), gone).reshape(3, 4).tolist() == [[True] * 4, [False] * 4, [True] * 4]


def test_equal_of_products_without_common_refinement_ties_positions() -> None:
    labels = Labels()
    one, other = (labels.fresh(6), labels.fresh(2)), (labels.fresh(4), labels.fresh(3))
    labels.equal(one, other)
    assert go_together(labels, one, other)


def test_equal_with_a_fixed_axis_blocks_and_names_the_op() -> None:
    labels = Labels(doing="aten.add")
    axis = labels.fresh(3)
    labels.equal((axis,), (labels.fixed(3),))
    assert [block.why for block in labels.blocks] == ["aten.add combines it with positions that stay"]
    assert solve(labels).blocked.all()


def test_axis_that_is_equal_as_a_whole_has_the_same_labels() -> None:
    labels = Labels()
    one, two, three, four = (labels.fresh(3) for _ in range(4))
    for left, right in ((one, two), (three, four), (two, three)):
        labels.equal((left,), (right,))
    assert labels.num_atoms == 0
    assert atoms(one) == atoms(two) == atoms(three) == atoms(four) == [0, 1, 2]
    assert labels.equations == []


def test_axes_that_are_one_share_their_cuts() -> None:
    labels = Labels()
    one, other = labels.fresh(6), labels.fresh(6)
    labels.equal((one,), (other,))
    assert labels.split(one, 2) == labels.split(other, 2)


def test_fixed_axis_has_no_labels() -> None:
    with pytest.raises(ValueError, match=r"Axis\(3, fixed\) has no labels"):
        _ = Labels().fixed(3).atoms


def test_equal_is_stated_once() -> None:
    labels = Labels()
    one, other = labels.fresh(3), labels.fresh(3)
    assert atoms(one) != atoms(other)
    for _ in range(2):
        labels.equal((one,), (other,))
        labels.equal((other,), (one,))
    assert len(labels.equations) == 1


def test_split_twice_agrees_with_the_first_cut() -> None:
    labels = Labels()
    axis = labels.fresh(12)
    rows, _ = labels.split(axis, 2)
    finer, columns = labels.split(axis, 6)
    assert len(labels.definitions) == 3  # 12 = (2, 6), 6 = (3, 2), and (2, 3) seen as one
    solution = solve(labels)
    assert solution.is_unit.sum() == 2 + 3 + 2
    gone = solution.removed([int(solution.classes(rows)[0])])
    assert solution.kept((finer,), gone).tolist() == [False] * 3 + [True] * 3
    assert solution.kept((columns,), gone).all()


def test_split_of_a_product_gives_its_axes_back() -> None:
    labels = Labels()
    rows, columns = labels.fresh(3), labels.fresh(4)
    assert labels.split(labels.merge((rows, columns)), 3) == (rows, columns)


def test_split_at_the_ends_is_the_axis_itself() -> None:
    labels = Labels()
    axis = labels.fresh(5)
    assert labels.split(axis, 1) == (labels.fixed(1), axis)
    assert labels.split(axis, 5) == (axis, labels.fixed(1))


def test_split_that_does_not_fit_the_first_ties_columns() -> None:
    labels = Labels()
    axis = labels.fresh(12)
    for outer in (3, 2):
        labels.split(axis, outer)
    solution = solve(labels)
    assert not solution.blocked.any()
    for unit in np.nonzero(solution.is_unit)[0].tolist():
        left = solution.kept((axis,), solution.removed([unit]))
        assert left.sum() in (0, 6)


def test_merge_joins_neighbouring_fixed_axes() -> None:
    labels = Labels()
    axis = labels.fresh(2)
    assert labels.tidy((labels.fixed(3), labels.fixed(1), labels.fixed(4), axis)) == (labels.fixed(12), axis)


def test_merge_with_a_counted_axis_stays_counted() -> None:
    labels = Labels()
    (joint,) = labels.tidy((*labels.counted_dim(3), labels.fixed(4)))
    assert joint.is_counted
    assert joint.size == 12


def test_part_shares_the_labels() -> None:
    labels = Labels()
    axis = labels.fresh(6)
    (part,) = labels.part((axis,), 1, 6, 2)
    assert atoms(part) == [1, 3, 5]
    assert labels.part((axis,), 1, 6, 2) == (part,)
    assert labels.part((axis,), 0, 6) == (axis,)


def test_part_of_one_position_stays() -> None:
    labels = Labels()
    axis = labels.fresh(4)
    assert labels.part((axis,), 2, 3) == ()
    assert np.nonzero(solve(labels).blocked)[0].tolist() == [2]


def test_joined_keeps_pieces_that_are_fixed_or_single() -> None:
    labels = Labels(doing="aten.cat")
    axis = labels.fresh(3)
    (joined,) = labels.joined([(axis,), labels.fixed_dim(2), ()])
    solution = solve(labels)
    assert joined.size == 6
    assert solution.blocked[solution.classes(joined)].tolist() == [False] * 3 + [True] * 3
    assert {block.why for block in labels.blocks} == {"aten.cat joins it from positions that stay"}


def test_joined_of_fixed_pieces_is_fixed() -> None:
    labels = Labels()
    assert labels.joined([labels.fixed_dim(2), labels.fixed_dim(3)]) == (labels.fixed(5),)


def test_taken_repeats_and_reorders() -> None:
    labels = Labels()
    (taken,) = labels.taken((labels.fresh(3),), [2, 0, 0])
    assert atoms(taken) == [2, 0, 0]


def test_as_many_needs_nothing_of_the_same_axes_in_another_order() -> None:
    labels = Labels()
    whole = labels.fresh(12)
    groups, width = labels.split(whole, 3)
    labels.as_many((whole,), (width, groups))
    assert not labels.equations


def test_as_many_of_other_axes_ties_positions() -> None:
    labels = Labels()
    one, other = labels.fresh(4), labels.fresh(4)
    labels.as_many((one,), (other,))
    assert go_together(labels, (one,), (other,))


def test_span_is_stated_something_of_without_keeping_it() -> None:
    labels = Labels()
    axis = labels.fresh(4)
    last = labels.span((axis,), 3, 4)
    assert atoms(last) == atoms(axis)[3:]
    assert labels.blocks == []
    labels.block((last,), "why")
    assert solve(labels).blocked.tolist() == [False, False, False, True]
    assert labels.span((labels.fixed(4),), 1, 3).is_fixed
