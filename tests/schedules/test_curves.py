"""Schedules: exact at both ends, never beyond them, equal to the papers' equations in between."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError
from secateur.schedules import CURVES, Ramp, check_rising, constant, cubic, linear, one_shot

VALUES = st.floats(0.0, 1.0)
STEPS = st.integers(0, 10_000)

by_curve = pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)


def square(way: float) -> float:
    return way * way


@by_curve
@given(initial=VALUES, final=VALUES, begin=STEPS, length=STEPS, extra=STEPS)
def test_both_ends_are_exact_and_stay(curve, initial, final, begin, length, extra) -> None:
    schedule = curve(initial, final, begin_step=begin, end_step=begin + length)
    assert schedule(begin + length) == schedule(begin + length + extra) == final
    if length:
        assert schedule(begin) == schedule(max(0, begin - extra)) == initial


@by_curve
@given(initial=VALUES, final=VALUES, begin=STEPS, length=st.integers(1, 500))
def test_values_go_one_way_and_never_beyond_the_ends(curve, initial, final, begin, length) -> None:
    schedule = curve(initial, final, begin_step=begin, end_step=begin + length)
    values = [schedule(step) for step in range(begin, begin + length + 1, max(1, length // 20))]
    assert values == sorted(values, reverse=initial > final)
    assert all(min(initial, final) <= value <= max(initial, final) for value in values)


@given(initial=VALUES, final=VALUES, step=st.integers(0, 400))
def test_cubic_is_equation_1_of_zhu_and_gupta(initial, final, step) -> None:
    left = 1 - Fraction(min(max(step - 100, 0), 200), 200)
    expected = Fraction(final) + (Fraction(initial) - Fraction(final)) * left**3
    assert cubic(initial, final, begin_step=100, end_step=300)(step) == pytest.approx(float(expected), abs=1e-12)


@given(initial=VALUES, final=VALUES, step=st.integers(0, 400))
def test_linear_is_the_straight_line(initial, final, step) -> None:
    way = Fraction(min(max(step - 100, 0), 200), 200)
    expected = Fraction(initial) + (Fraction(final) - Fraction(initial)) * way
    assert linear(initial, final, begin_step=100, end_step=300)(step) == pytest.approx(float(expected), abs=1e-12)


@given(fraction=VALUES, step=st.integers(0, 1000))
def test_cosine_to_zero_is_the_decay_of_rigl(fraction, step) -> None:
    expected = fraction / 2 * (1 + math.cos(step * math.pi / 1000))
    schedule = CURVES["cosine"](fraction, 0.0, begin_step=0, end_step=1000)
    assert schedule(step) == pytest.approx(expected, abs=1e-12)


def test_one_shot_jumps_at_its_step() -> None:
    schedule = one_shot(0.1, 0.9, at_step=5)
    assert [schedule(step) for step in (0, 4, 5, 6)] == [0.1, 0.1, 0.9, 0.9]


def test_constant_is_the_same_everywhere() -> None:
    assert {constant(0.25)(step) for step in range(50)} == {0.25}


@by_curve
def test_curves_are_values_that_travel(curve) -> None:
    schedule = curve(0.0, 0.9, begin_step=10, end_step=20)
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert [again(step) for step in range(30)] == [schedule(step) for step in range(30)]


def test_ramp_takes_a_shape_of_ones_own() -> None:
    assert Ramp(0.0, 1.0, 0, 4, square)(2) == 0.25


@by_curve
def test_end_before_the_begin_is_refused(curve) -> None:
    with pytest.raises(InvalidInputError, match="end before it begins"):
        curve(0.0, 0.9, begin_step=20, end_step=19)


@by_curve
@pytest.mark.parametrize("step", [-1, 1.0, True, None])
def test_steps_that_are_none_are_refused(curve, step) -> None:
    with pytest.raises(InvalidInputError, match="begin_step must be a whole number"):
        curve(0.0, 0.9, begin_step=step, end_step=20)


@by_curve
@pytest.mark.parametrize("value", [math.nan, math.inf, "0.9", None])
def test_values_that_are_no_finite_numbers_are_refused(curve, value) -> None:
    with pytest.raises(InvalidInputError, match="finite number"):
        curve(0.0, value, begin_step=0, end_step=20)


@by_curve
def test_falling_schedule_is_refused_where_it_may_only_rise(curve) -> None:
    check_rising(curve(0.1, 0.9, begin_step=0, end_step=20), range(30))
    with pytest.raises(InvalidInputError, match=r"sparsity may only rise(.|\n)*at step 0: 0.9(.|\n)*at step 10"):
        check_rising(curve(0.9, 0.1, begin_step=0, end_step=20), range(0, 30, 10), what="sparsity")


def test_schedule_that_gives_nan_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="may only rise"):
        check_rising(lambda step: math.nan, [0, 1])
