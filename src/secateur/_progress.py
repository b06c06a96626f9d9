"""Bars for what takes long: one way for the library and for the command line.

A bar is drawn on standard error if that is a terminal, from a second after its task has begun until the task is over,
and leaves nothing behind. It is drawn by a thread of its own, so that tasks only count, and it makes way for whatever
else is written to the terminal meanwhile. `without_progress` and ``SECATEUR_PROGRESS=0`` have none drawn.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from operator import length_hint
from typing import TypeVar

from secateur._bars import Display, Task, is_terminal

__all__ = ["stages", "task", "track", "without_progress"]

T = TypeVar("T")

_VARIABLE = "SECATEUR_PROGRESS"

_lock = threading.RLock()  # held by who writes to the terminal, or changes what follows
_tasks: list[Task] = []
_display: Display | None = None
_num_silencers = 0


@contextmanager
def task(what: str, total: float | None = None, *, in_bytes: bool = False) -> Iterator[Task]:
    """A bar while the block runs, or the function that is decorated; without a total it says what is done.

    Args:
        what: What is done.
        total: Number of steps, or of bytes.
        in_bytes: Whether it is of bytes.

    Yields:
        What is to be told how far it is.
    """
    made = Task(what, total, in_bytes=in_bytes)
    if not _is_wanted():
        yield made
        return
    try:
        _open(made)
        yield made
    finally:
        _close(made)


def track(items: Iterable[T], what: str, *, most: int | None = None) -> Iterator[T]:
    """Items one by one, with a bar that counts those that are over.

    Args:
        items: The items.
        what: What is done with them.
        most: How many to take from the beginning; all if left out.
    """
    taken = islice(items, most)  # this begins with them: a loader forks its workers before there is a thread
    return _tracked(taken, what, _number_of(items, most)) if _is_wanted() else taken


def _number_of(items: Iterable[object], most: int | None) -> int | None:
    """How many items there are to take, if they say so."""
    try:
        number = length_hint(items, 0)
    except Exception:  # whatever a loader raises that does not know its length
        return None
    return (number if most is None else min(number, most)) or None


def _tracked(items: Iterator[T], what: str, total: int | None) -> Iterator[T]:
    """The same items."""
    with task(what, total) as bar:
        for item in items:
            yield item
            bar.advance()


@contextmanager
def stages(count: int) -> Iterator[Callable[[str], None]]:
    """A bar for a task in stages: what it gives is called with the name of each as it begins.

    Args:
        count: Number of stages.
    """
    with task("", count) as whole:

        def begin(what: str) -> None:
            whole.advance(1 if whole.what else 0)
            whole.what = what

        yield begin
        whole.advance()


@contextmanager
def without_progress() -> Iterator[None]:
    """Have no progress bars while the block runs, or the function that is decorated, whatever the thread.

    Without it they are drawn on standard error if that is a terminal, for tasks that take over a second. For a whole
    process set ``SECATEUR_PROGRESS=0`` in its environment.

    Example:
        >>> import torch
        >>> import secateur
        >>> with without_progress():
        ...     found = secateur.profile(torch.nn.Linear(8, 4), torch.randn(2, 8), seconds=0)
    """
    _silence(1)
    try:
        yield
    finally:
        _silence(-1)


def _silence(change: int) -> None:
    """Count those who want it silent."""
    global _num_silencers
    with _lock:
        _num_silencers += change


def _is_wanted() -> bool:
    """Whether a new task may be shown."""
    return not _num_silencers and is_terminal(sys.stderr) and os.environ.get(_VARIABLE) != "0"


def _open(made: Task) -> None:
    """Take up a task; the first one has them drawn."""
    global _display
    with _lock:
        _tasks.append(made)
        if _display is None:
            _display = Display(sys.stderr, _tasks, _lock)
            threading.Thread(target=_display.run, name="secateur progress", daemon=True).start()


def _close(made: Task) -> None:
    """Drop a task; the last one leaves a clean terminal."""
    global _display
    with _lock:
        if made in _tasks:
            _tasks.remove(made)
        if not _tasks and _display is not None:
            _display.end()
            _display = None


def _forget() -> None:
    """In a child process: the thread that draws is the parent's."""
    global _display
    if _display is not None:
        _display.let_go()
        _display = None
    _tasks.clear()
    _lock.release()


if sys.platform != "win32":
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget)
