"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.report.units import Unit, brief, plain, shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "count", "0"),
        (-1234.0, "count", "-1,234"),
        (1.0, "fraction", "100.0 %"),
        (0.0, "seconds", "0 ms"),
        (1.5, "seconds", "1.5e+03 ms"),
        (999, "bytes", "999 B"),
        (1000, "bytes", "1 kB"),
        (999_600, "bytes", "1 MB"),
        (2.5e15, "bytes", "2.5 PB"),
        (1, "", "1"),
        (0.123456, "", "0.1235"),
        ("words", "count", "words"),
        ("a.b", "name", "a.b"),
        (math.inf, "bytes", "inf"),
    ],
)
def test_shown(value: float | str, unit: Unit, expected: str) -> None:
    assert shown(value, unit) == expected


@given(st.integers(0, 10**15))
def test_brief_numbers_are_short_and_within_half_a_percent(value: int) -> None:
    text = brief(value, "count")
    number, _, prefix = text.partition(" ")
    factor = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[prefix]
    assert len(text) <= 6
    assert math.isclose(float(number) * factor, value, rel_tol=0.005)


def test_plain_values_are_those_of_json() -> None:
    assert [plain(value) for value in (1, 1.5, math.nan, -math.inf, "a", ("a", "b"), None)] == [
        1,
        1.5,
        None,
        None,
        "a",
        ["a", "b"],
        None,
    ]
