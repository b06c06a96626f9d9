"""What the source says of the expression that is under way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from secateur.graph.literals import Site, is_literal

FIVE = 5


class Seen:
    """Notes the site of each subscription and call."""

    site: Site

    def __getitem__(self, index: Any) -> Seen:
        self.site = Site(sys._getframe(1))
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self.site = Site(sys._getframe(1))

    def narrow(self, *args: Any, **kwargs: Any) -> Seen:
        self.site = Site(sys._getframe(1))
        return self


def written(seen: Seen, *numbers: object) -> list[bool]:
    """Which of the numbers are written out in the index."""
    return [is_literal(node, number) for node, number in zip(seen.site.index(len(numbers)), numbers, strict=True)]


def test_numbers_of_an_index_are_literals_only_where_they_are_written_out() -> None:
    seen = Seen()
    _ = seen[3, -2, FIVE, int("7")]
    assert written(seen, 3, -2, FIVE, 7) == [True, True, False, False]
    assert written(seen, 4, -2, FIVE, 7) == [False, True, False, False]
    seen[9] = 0
    assert written(seen, 9) == [True]
    assert str(seen.site).startswith("test_literals.py:")


def test_an_index_over_several_lines_and_one_among_others_is_found() -> None:
    seen, other = Seen(), [4, 6]
    pair = (seen[1], other[1])
    assert written(pair[0], 1) == [True]
    _ = seen[
        2,
        FIVE
    ]  # fmt: skip
    assert written(seen, 2, 5) == [True, False]


def test_an_index_that_is_a_variable_tells_nothing() -> None:
    seen, index = Seen(), (3, 4)
    _ = seen[index]
    assert written(seen, 3, 4) == [False, False]


def calls(seen: Seen) -> Iterator[list[Any]]:
    """One call in several spellings, the last with numbers from elsewhere."""
    seen.narrow(1, 2, 3)
    yield seen.site.arguments("start", "length")
    seen.narrow(1, start=2, length=3)
    yield seen.site.arguments("start", "length")
    seen.narrow(1, 2, length=3)
    yield seen.site.arguments("start", "length")
    seen.narrow(1, FIVE - 3, 3)
    yield seen.site.arguments("start", "length")


def test_arguments_of_a_call_are_found_by_place_and_by_name() -> None:
    found = [[is_literal(node, number) for node, number in zip(nodes, (2, 3), strict=True)] for nodes in calls(Seen())]
    assert found == [[True, True], [True, True], [True, True], [False, True]]


@pytest.mark.parametrize("code", ["seen[3]", "seen.narrow(1, 2, 3)"])
def test_code_without_source_tells_nothing(code: str) -> None:
    seen = Seen()
    exec(compile(code, "<nowhere>", "exec"), {"seen": seen})
    assert written(seen, 3) == [False]
    assert seen.site.arguments("start", "length") == [None, None]
