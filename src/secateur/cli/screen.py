"""Where commands print: tables for people or one JSON document."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from secateur._errors import SecateurError
from secateur.cli.fixes import in_options

__all__ = ["Screen", "table", "told"]

_OUTPUT, _ERRORS = 1, 2  # descriptors, which subprocesses and libraries in C write to
_WIDE = 160  # columns of a table that goes into a file or a pipe


class Screen:
    """Where one command prints.

    Args:
        json: Whether standard output is one JSON document.

    Attributes:
        console: Standard output for people; silent if it is for JSON.
    """

    def __init__(self, *, json: bool) -> None:
        self._json = json
        width = None if sys.stdout.isatty() else _WIDE
        self.console = Console(quiet=json, width=width, highlight=False, markup=False, emoji=False)

    @contextmanager
    def kept_clean(self) -> Iterator[None]:
        """Have what others print, in whatever way, go to standard error if standard output is for JSON."""
        if not self._json:
            yield
            return
        sys.stdout.flush()
        kept = os.dup(_OUTPUT)
        os.dup2(_ERRORS, _OUTPUT)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            os.dup2(kept, _OUTPUT)
            os.close(kept)

    def show_json(self, found: object) -> None:
        """Print what a command has returned, if that is wanted."""
        if self._json:
            print(json.dumps(found, indent=2))


def table(title: str, *columns: str, sides: str = "") -> Table:
    """An empty table.

    Args:
        title: What is above it.
        *columns: The headings.
        sides: One letter a column, where its cells stand: ``r`` for numbers, ``l`` for words, as all if left out.
    """
    made = Table(title=title, title_justify="left")
    for heading, side in zip(columns, sides or "l" * len(columns), strict=True):
        made.add_column(heading, justify="right" if side == "r" else "left", overflow="fold", no_wrap=side == "r")
    return made


def told(error: BaseException) -> str:
    """An error in words: text and notes, and for those that are not of the library its type and where it is from."""
    notes = [in_options(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, SecateurError):
        return "\n  ".join([in_options(str(error)), *notes])
    where = _place(error)
    place = [f"at {where}; --traceback shows the way there"] if where else []
    return "\n  ".join([f"{type(error).__name__}: {error}", *notes, *place])


def _place(error: BaseException) -> str:
    """File and line of the last call that neither Python, nor this package, nor an installed one has made."""
    places = (Path(torch.__file__).parents[1], Path(__file__).parents[1], Path(json.__file__).parents[1])
    installed = (*map(str, places), "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(installed)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
