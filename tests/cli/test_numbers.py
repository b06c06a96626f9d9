"""Numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from secateur.cli.numbers import budget, count, duration, sparsity

Read = Callable[[str], float]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (budget, "1", 1.0),
        (budget, "1e-3", 0.001),
        (sparsity, "0", 0.0),
        (sparsity, ".9", 0.9),
        (duration, "0", 0.0),
        (duration, "2.5", 2.5),
        (count, "12", 12),
    ],
)
def test_numbers_are_read(read: Read, text: str, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (budget, ["0", "-0.5", "1.01", "50", "nan", "half", ""]),
        (sparsity, ["1", "-0.1", "90", "nan", "inf", "50%", ""]),
        (duration, ["-1", "inf", "nan", "1s"]),
        (count, ["0", "-1", "1.5", "²", "many", ""]),
    ],
)
def test_others_are_refused_as_wrong_usage(read: Read, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match="is no "):
            read(text)
