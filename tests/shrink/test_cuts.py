"""Cuts lie where they are asked for, and their fractions rise along the curve to the whole, exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.schedules import CURVES, Curve, Schedule, cubic, linear
from secateur.shrink.cuts import cuts_along


@given(begin=st.integers(1, 50), span=st.integers(0, 300), number=st.integers(1, 40))
@pytest.mark.parametrize("curve", [cubic, linear])
def test_cuts_are_evenly_spaced_and_rise_to_the_whole(curve: Curve, begin: int, span: int, number: int) -> None:
    number = min(number, span + 1)
    cuts = cuts_along(curve, begin_step=begin, end_step=begin + span, num_cuts=number)
    steps, gone = list(cuts), list(cuts.values())
    assert len(steps) == number
    assert steps[0] == begin
    assert steps[-1] == (begin + span if number > 1 else begin)
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps, default=1) - min(gaps, default=1) <= 1
    assert gone == sorted(gone)
    assert gone[-1] == 1.0
    for cut, share in enumerate(gone, start=1):
        left = number - cut
        expected = 1 - left**3 / number**3 if curve is cubic else cut / number
        assert share == pytest.approx(expected, abs=1e-12)


def test_a_curve_of_ones_own_that_ends_a_little_off_ends_at_the_whole() -> None:
    def tenths(initial: float, final: float, *, begin_step: int, end_step: int) -> Schedule:
        return lambda step: 0.1 * 10 * step / end_step

    def short(initial: float, final: float, *, begin_step: int, end_step: int) -> Schedule:
        return lambda step: max(0.0, step / end_step - 1e-12)

    assert list(cuts_along(tenths, begin_step=1, end_step=3, num_cuts=3).values())[-1] == 1.0
    assert cuts_along(short, begin_step=4, end_step=9, num_cuts=1) == {4: 1.0}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_every_curve_of_the_table_gives_cuts_from_just_above_0_to_1(curve: Curve) -> None:
    gone = list(cuts_along(curve, begin_step=3, end_step=40, num_cuts=9).values())
    assert gone == [curve(0.0, 1.0, begin_step=0, end_step=9)(cut) for cut in range(1, 10)]
    assert gone[0] > 0.0
    assert gone == sorted(gone)
