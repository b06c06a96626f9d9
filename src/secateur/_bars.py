"""Bars as they are drawn on a terminal, below whatever else is written to it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Display", "Task", "is_terminal"]

DELAY = 1.0
"""Seconds after which a task is shown."""

_PAUSE = 0.25  # seconds from one drawing to the next
_WIDTH = 40  # columns of a bar
_TEXT = 26  # columns, at least, of what is done


class Task:
    """Something that takes long.

    Args:
        what: What is done, as the bar says it.
        total: Number of steps, or of bytes; None if it is not known.
        in_bytes: Whether it is of bytes.

    Attributes:
        done: How many of them are over.
    """

    def __init__(self, what: str, total: float | None, *, in_bytes: bool) -> None:
        self.what = what
        self.total = total
        self.in_bytes = in_bytes
        self.done: float = 0
        self.begun = time.monotonic()

    def advance(self, count: float = 1) -> None:
        """Say that some more are over."""
        self.done += count


def is_terminal(stream: Any) -> bool:
    """Whether a stream, if it is one, is a terminal."""
    return hasattr(stream, "isatty") and not getattr(stream, "closed", False) and bool(stream.isatty())


class Display:
    """What is drawn of the open tasks.

    Args:
        stream: Standard error.
        tasks: Those that are open, in the order in which they were begun.
        lock: Held by who writes to the terminal.
    """

    def __init__(self, stream: TextIO, tasks: Sequence[Task], lock: threading.RLock) -> None:
        self._stream = stream
        self._tasks = tasks
        self.lock = lock
        self._over = threading.Event()
        self._num_lines = 0
        self._state: object = None
        self._at_margin = True  # nobody else has begun a line
        self._guards: dict[str, _Guard] = {}

    def run(self) -> None:
        """Draw, time and again, until all is over."""
        console = None
        try:
            while not self._over.wait(_PAUSE):
                shown = [each for each in tuple(self._tasks) if time.monotonic() - each.begun >= DELAY]
                if shown and console is None:
                    console = _console(self._stream)
                    if console is None:
                        return
                if console is not None:
                    self._draw(shown, console)
        except (OSError, ValueError):  # the terminal is gone, or has no such letters
            self.let_go()

    def _draw(self, shown: Sequence[Task], console: Console) -> None:
        """Draw tasks in the place of what was drawn before, unless that says the same."""
        now = time.monotonic()
        state = [(each.what, each.done, each.total, int(now - each.begun)) for each in shown]
        if state == self._state:
            return
        lines = _lines(shown, now, console)
        with self.lock:
            if self._at_margin and not self._over.is_set():
                self._guard()
                self._write(self._erasing() + "\n".join(lines))
                self._num_lines, self._state = len(lines), state

    def make_way(self, text: str) -> None:
        """Leave the terminal to a text that comes from elsewhere; nothing is drawn beside what does not end a line."""
        if text and not self._over.is_set():
            self._erase()
            self._at_margin = text.endswith("\n")

    def end(self) -> None:
        """Leave nothing behind."""
        if not self._over.is_set():
            self.let_go()
            self._erase()

    def let_go(self) -> None:
        """Draw no more, and give the streams back."""
        self._over.set()
        for name, guard in self._guards.items():
            if getattr(sys, name) is guard:
                setattr(sys, name, guard.stream)

    def _guard(self) -> None:
        """See what others write to the terminal."""
        for name in ("stdout", "stderr") if not self._guards else ():
            stream = getattr(sys, name)
            if is_terminal(stream):
                self._guards[name] = _Guard(stream, self)
                setattr(sys, name, self._guards[name])

    def _erase(self) -> None:
        """Take away what is drawn."""
        with suppress(OSError, ValueError):  # the terminal may be gone
            self._write(self._erasing())
        self._num_lines, self._state = 0, None

    def _erasing(self) -> str:
        """What erases the lines that are drawn, from the last one up."""
        return "\x1b[1A".join(["\r\x1b[2K"] * self._num_lines)

    def _write(self, text: str) -> None:
        """Write at once."""
        self._stream.write(text)
        self._stream.flush()


class _Guard:
    """A stream in which bars make way for what is written.

    Args:
        stream: Where it is written to.
        display: The bars.
    """

    def __init__(self, stream: TextIO, display: Display) -> None:
        self.stream = stream
        self._display = display

    def write(self, text: str) -> int:
        """Write after the bars are gone."""
        with self._display.lock:
            self._display.make_way(text)
            return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _console(stream: TextIO) -> Console | None:
    """What turns bars into text; None if the terminal cannot move its cursor."""
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    is_plain = not console.is_terminal or console.is_dumb_terminal or console.legacy_windows
    return None if is_plain else console


def _lines(shown: Sequence[Task], now: float, console: Console) -> list[str]:
    """The lines of some tasks."""
    from rich.filesize import decimal
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for width in (_TEXT, None, None, None):
        grid.add_column(no_wrap=True, overflow="crop", min_width=width)
    for each in shown:
        count = decimal if each.in_bytes else "{:.0f}".format
        minutes, seconds = divmod(int(now - each.begun), 60)
        bar = ProgressBar(each.total, each.done, _WIDTH) if each.total else ""
        amount = f"{count(int(each.done))}/{count(int(each.total))}" if each.total else ""
        grid.add_row(each.what, bar, amount, f"{minutes}:{seconds:02}")
    with console.capture() as caught:
        console.print(grid)
    return caught.get().splitlines()
