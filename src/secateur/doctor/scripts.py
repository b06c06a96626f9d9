"""Running a user's script as Python itself would: as ``__main__``, with its arguments and its folder to import from."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from secateur._errors import InvalidInputError

__all__ = ["refuse_missing", "run_script", "user_traceback"]

_RUNNING = (f"{Path(__file__).parents[1]}{os.sep}", runpy.__file__, "<frozen runpy>", "<frozen importlib")
"""What is above a script in a traceback: this package and the part of Python that runs scripts."""


def refuse_missing(name: str, *, is_module: bool) -> None:
    """Refuse what cannot be run.

    Args:
        name: Path of a script, or of a folder with ``__main__.py``; or the dotted name of a module.
        is_module: Whether it is a module.

    Raises:
        InvalidInputError: There is no such file or module.
    """
    if is_module and not _is_importable(name):
        raise InvalidInputError(f"there is no module {name!r}.", folder=os.getcwd(), fix="secateur doctor train.py")
    if not is_module and not Path(name).exists():
        raise InvalidInputError(
            f"there is no script {name!r}.", folder=os.getcwd(), fix="secateur doctor -m package.train"
        )


def run_script(name: str, arguments: Sequence[str], *, is_module: bool) -> dict[str, object]:
    """Run a script as ``python train.py …`` or ``python -m package.train …`` does.

    Args:
        name: Path of the script, or dotted name of the module.
        arguments: What it finds in ``sys.argv[1:]``.
        is_module: Whether it is a module.

    Returns:
        The script's global variables, so that what it made stays alive.

    Raises:
        BaseException: Whatever the script raises, ``SystemExit`` included.
    """
    with _arguments([name, *arguments]), _importing_from(os.getcwd() if is_module else _folder(name)):
        if is_module:
            return runpy.run_module(name, run_name="__main__", alter_sys=True)
        return runpy.run_path(name, run_name="__main__")


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the script; None if its text could not even be compiled."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_RUNNING):
        trace = trace.tb_next
    return trace


def _is_importable(module: str) -> bool:
    """Whether there is a module of this name, seen from the current folder."""
    with _importing_from(os.getcwd()):
        try:
            return find_spec(module) is not None
        except (ImportError, ValueError):  # of the package that it is said to be in
            return False


def _folder(script: str) -> str:
    """The folder that a script imports from."""
    path = Path(script).resolve()
    return str(path if path.is_dir() else path.parent)


@contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """Have ``sys.argv`` be these words."""
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Have the first place to import from be this folder."""
    before = sys.path[:]
    sys.path[0] = folder
    try:
        yield
    finally:
        sys.path[:] = before
