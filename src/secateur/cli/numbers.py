"""Numbers on the command line: read and checked by their options, so that a wrong one is wrong usage."""

from __future__ import annotations

import argparse
import math

__all__ = ["budget", "count", "duration", "sparsity"]


def budget(text: str) -> float:
    """What may be left, of what there is now: a fraction in (0, 1].

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    share = _number(text)
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no fraction above 0 and up to 1, such as 0.5 for a half")
    return share


def sparsity(text: str) -> float:
    """What goes, of what there is now: a fraction in [0, 1).

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    share = _number(text)
    if not 0.0 <= share < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no fraction from 0 to below 1, such as 0.5 for a half")
    return share


def duration(text: str) -> float:
    """A number of seconds from 0 on.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    seconds = _number(text)
    if not 0.0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def count(text: str) -> int:
    """A number of things, at least one.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
