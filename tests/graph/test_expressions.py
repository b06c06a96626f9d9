"""Arithmetic on sizes: values, inverses and what products tie, against plain Python numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secateur.graph.expressions import evaluated, solved, tie_product
from secateur.graph.labels import Labels
from secateur.graph.solve import solve
from secateur.graph.sources import OPERATIONS, Attribute, DimSize, Expression

SIZES = st.integers(1, 24)


def attribute(value: int, name: str = "width") -> Attribute:
    """An attribute of an object of its own."""
    return Attribute(SimpleNamespace(**{name: value}), "module", name)


@given(a=SIZES, b=SIZES, c=SIZES, symbol=st.sampled_from(["+", "-", "*", "//", "%"]))
def test_value_is_that_of_the_numbers_put_in(a: int, b: int, c: int, symbol: str) -> None:
    known, fixed, labels = attribute(99), attribute(c), Labels()
    source = Expression("+", (Expression(symbol, (known, DimSize(labels.fresh_dim(7)))), fixed))
    assert evaluated(source, {known: a}, lambda _: b) == OPERATIONS[symbol](a, b) + c


def test_division_by_nothing_has_no_value() -> None:
    source = Expression("//", (12, DimSize(Labels().fresh_dim(4))))
    assert evaluated(source, {}, lambda _: 0) is None


@given(value=SIZES, other=SIZES, symbol=st.sampled_from(["+", "-", "*", "//"]), first=st.booleans())
def test_solved_value_gives_what_is_wanted(value: int, other: int, symbol: str, *, first: bool) -> None:
    assume(symbol != "//" or ((value * other) % other == 0 if first else other % value == 0))
    one = attribute(value)
    number = value * other if symbol == "//" and first else value
    source = Expression(symbol, (one, other) if first else (other, one))
    wanted = OPERATIONS[symbol](*((number, other) if first else (other, number)))
    found = solved(source, one, {}, lambda _: 0, wanted)
    assert found == number


@pytest.mark.parametrize(("symbol", "other", "wanted"), [("*", 4, 10), ("//", 7, 3)])
def test_what_does_not_come_out_even_has_no_solution(symbol: str, other: int, wanted: int) -> None:
    one = attribute(4)
    assert solved(Expression(symbol, (other, one)), one, {}, lambda _: 0, wanted) is None


def test_attribute_that_stands_twice_has_no_solution() -> None:
    one = attribute(4)
    assert solved(Expression("*", (one, one)), one, {}, lambda _: 0, 9) is None


@pytest.mark.parametrize("divided", [False, True])
def test_product_goes_where_either_factor_goes(divided: bool) -> None:
    labels = Labels()
    whole, outer, inner = labels.fresh_dim(12), labels.fresh_dim(3), labels.fresh_dim(4)
    heads = attribute(3, "heads")
    quotient = Expression("//", (DimSize(whole), heads))
    product = Expression("*", (heads, DimSize(inner)))
    assert tie_product(labels, quotient if divided else product, inner if divided else whole, {heads: outer})
    solution = solve(labels)
    removed = solution.removed([int(solution.classes(outer[0])[1]), int(solution.classes(inner[0])[3])])
    assert solution.kept(whole, removed).reshape(3, 4).tolist() == [
        [h != 1 and d != 3 for d in range(4)] for h in range(3)
    ]


def test_sum_and_sizes_that_do_not_fit_tie_nothing() -> None:
    labels = Labels()
    whole, inner = labels.fresh_dim(12), labels.fresh_dim(4)
    assert not tie_product(labels, Expression("+", (DimSize(inner), 8)), whole, {})
    assert not tie_product(labels, Expression("*", (DimSize(inner), 2)), whole, {})
    assert not tie_product(labels, DimSize(inner), whole, {})
