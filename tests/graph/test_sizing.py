"""New values of numbers in the code, from how many positions dims keep."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.graph.labels import Dim, Labels
from secateur.graph.provenance import Attribute, DimSize, Expression
from secateur.graph.sizing import Sizing, settle
from secateur.graph.solve import solve
from secateur.graph.watching import Tie, Used


def attribute(name: str, value: int) -> Attribute:
    return Attribute(SimpleNamespace(**{name: value}), "", name)


def test_an_attribute_takes_the_number_of_positions_that_its_dim_keeps() -> None:
    labels = Labels()
    dim, heads = labels.fresh_dim(6), attribute("heads", 6)
    sizing = settle(labels, [Tie(heads, dim, "view")], [])
    assert sizing.values(lambda d: 4 if d is dim else 0) == {heads: 4}
    assert sizing.contradicted(lambda d: 4) == []


def test_two_dims_of_one_attribute_go_together() -> None:
    labels = Labels()
    one, other = labels.fresh_dim(5), labels.fresh_dim(5)
    width = attribute("width", 5)
    settle(labels, [Tie(width, one, "view"), Tie(width, other, "view")], [])
    solution = solve(labels)
    assert solution.classes(one[0]).tolist() == solution.classes(other[0]).tolist()


def test_dims_of_different_sizes_are_not_tied() -> None:
    labels = Labels()
    one, other = labels.fresh_dim(5), labels.fresh_dim(4)
    settle(labels, [Tie(DimSize(one), other, "view")], [])
    assert labels.equations == []


@given(heads=st.integers(1, 8), width=st.integers(1, 8), kept=st.integers(1, 8))
def test_the_unknown_of_a_product_is_solved(heads: int, width: int, kept: int) -> None:
    labels = Labels()
    one, total = labels.fresh_dim(heads + 1), labels.fresh_dim((heads + 1) * 9)
    known, unknown = attribute("heads", heads + 1), attribute("width", 9)
    product = Expression("*", (known, unknown))
    sizing = Sizing({known: one}, [Tie(product, total, "reshape")])

    def count(dim: Dim) -> int:
        return heads if dim is one else heads * kept

    assert sizing.values(count) == {known: heads, unknown: kept}
    assert sizing.contradicted(count) == []
    wrong = [t.source for t in sizing.contradicted(lambda d: heads if d is one else heads * 9 + heads + 1)]
    assert wrong == [product]


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        (("//", "c", "h"), {"c": 12, "h": 3}, 4),
        (("%", "c", "h"), {"c": 13, "h": 5}, 3),
        (("-", "c", "h"), {"c": 13, "h": 5}, 8),
        (("+", "c", "h"), {"c": 13, "h": 5}, 18),
    ],
)
def test_expressions_of_known_attributes_are_checked(
    expression: tuple[str, str, str], values: dict[str, int], expected: int
) -> None:
    labels = Labels()
    known = {name: (attribute(name, value), labels.fresh_dim(value)) for name, value in values.items()}
    target = labels.fresh_dim(expected)
    symbol, left, right = expression
    tie = Tie(Expression(symbol, (known[left][0], known[right][0])), target, "view")
    sizing = Sizing(dict(known.values()), [tie])
    sizes = {id(dim): values[name] for name, (_, dim) in known.items()}
    assert sizing.contradicted(lambda d: sizes.get(id(d), expected)) == []
    assert sizing.contradicted(lambda d: sizes.get(id(d), expected + 1)) == [tie]


def test_a_division_by_zero_is_a_contradiction_and_no_exception() -> None:
    labels = Labels()
    one, other, target = labels.fresh_dim(4), labels.fresh_dim(3), labels.fresh_dim(2)
    c, h = attribute("c", 4), attribute("h", 3)
    tie = Tie(Expression("//", (c, h)), target, "view")
    sizing = Sizing({c: one, h: other}, [tie])
    assert sizing.contradicted(lambda d: 0) == [tie]


def test_values_in_python_pin_attributes_and_others_block_their_dims() -> None:
    labels = Labels()
    one, other, third = labels.fresh_dim(4), labels.fresh_dim(3), labels.fresh_dim(5)
    width, heads = attribute("width", 4), attribute("heads", 3)
    ties = [Tie(width, one, "view"), Tie(heads, other, "view")]
    sizing = settle(labels, ties, [Used(width, True), Used(heads, False), Used(DimSize(third), True)])
    assert sizing.pinned == {width}
    solution = solve(labels)
    blocked = [bool(solution.blocked[solution.classes(dim[0])].all()) for dim in (one, other, third)]
    assert blocked == [False, True, True]
    assert set(solution.why.values()) == {
        "the code computes with its size (a scale), so another size is another function"
    }
