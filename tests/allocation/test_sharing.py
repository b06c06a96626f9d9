from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from secateur.allocation._sharing import shared_out

Part = tuple[int, int, int]
parts_within_bounds = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 9), st.integers(0, 30)).map(lambda p: (p[0], p[1], p[1] + p[2])),
    min_size=1,
    max_size=6,
)


def amounts(parts: list[Part], epsilon: Fraction) -> list[Fraction]:
    return [min(max(epsilon * weight, Fraction(low)), Fraction(high)) for weight, low, high in parts]


def exact(parts: list[Part], total: int) -> list[Fraction]:
    """Halve the interval that holds epsilon until it is far below what floats can tell; exact arithmetic."""
    below, above = Fraction(0), Fraction(10_000)
    for _ in range(80):
        middle = (below + above) / 2
        if sum(amounts(parts, middle)) <= total:
            below = middle
        else:
            above = middle
    return amounts(parts, below)


@given(parts=parts_within_bounds, share=st.fractions(0, 1))
def test_shared_out_meets_the_total_within_bounds_and_in_proportion(parts: list[Part], share: Fraction) -> None:
    least, most = sum(low for _, low, _ in parts), sum(high for _, _, high in parts)
    total = least + int(share * (most - least))
    weights, low, high = zip(*parts, strict=True)
    found = shared_out([float(weight) for weight in weights], low, high, total)
    assert sum(found) == total
    for number, wanted, (_, lowest, highest) in zip(found, exact(parts, total), parts, strict=True):
        assert lowest <= number <= highest
        assert abs(number - wanted) < 1 + 1e-9


def test_nothing_is_shared_out_among_none() -> None:
    assert shared_out([], [], [], 0) == []
