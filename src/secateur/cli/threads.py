"""``--threads``: how many threads torch uses while something is timed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from secateur.cli.numbers import count

__all__ = ["add_threads", "using_threads"]


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads`` to a parser."""
    parser.add_argument("--threads", type=count, metavar="N", help="threads of torch (default: as many as it takes)")


@contextmanager
def using_threads(number: int | None) -> Iterator[None]:
    """Have torch use so many threads; as many as now for None."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
