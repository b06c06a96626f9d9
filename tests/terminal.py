"""A terminal for tests: a program runs at one, and what a person would see there is told from what it has written."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import secateur

_PIECE = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z])|(.)", re.DOTALL)

START = f"""
import os, sys, threading, types
sys.modules["secateur"] = types.ModuleType("secateur")
sys.modules["secateur"].__path__ = {[str(Path(secateur.__file__).parent)]!r}
from secateur import _bars as bars, _progress as progress
bars.DELAY, bars._PAUSE = 0.0, 0.005
"""
"""The beginning of a program that shows progress at once; of secateur it imports this part alone."""


def shown(written: str) -> list[str]:
    """The lines that are on a terminal after this was written to it, without empty ones at the end.

    Example:
        >>> shown("one\\r\\ntwo\\r\\x1b[2K\\x1b[1A\\x1b[32m1\\x1b[0m")
        ['1ne']
    """
    lines, row, column = [""], 0, 0
    for code, letter in _PIECE.findall(written):
        if code.endswith("A"):
            row = max(0, row - int(code[2:-1]))
        elif code == "\x1b[2K":
            lines[row] = ""
        elif code and not code.endswith("m"):
            raise AssertionError(f"no such code is known here: {code!r}")
        elif letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif letter:
            lines[row] = lines[row].ljust(column)[:column] + letter + lines[row][column + 1 :]
            column += 1
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


class Terminal:
    """A Python program at a terminal, which waits for lines that a test gives it.

    Args:
        code: The program.
        environment: Variables besides those of this process.
        apart: Whether standard output is a pipe, and only standard error a terminal.
    """

    def __init__(self, code: str, environment: Mapping[str, str] | None = None, *, apart: bool = False) -> None:
        self._leader, follower = pty.openpty()
        self.written = ""
        more = {"TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
        self._program = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if apart else follower,
            stderr=follower,
            env=os.environ | more | dict(environment or {}),
            text=True,
        )
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.communicate()
        os.close(self._leader)

    def until(self, *texts: str) -> list[str]:
        """Wait until all texts are on the terminal at once; what is on it then."""
        while not all(text in "\n".join(shown(self.written)) for text in texts):
            if not self._read():
                raise AssertionError(f"the program has ended without {texts}: {self.written!r}")
        return shown(self.written)

    def answer(self) -> None:
        """Let the program go on."""
        assert self._program.stdin is not None
        self._program.stdin.write("\n")
        self._program.stdin.flush()

    def interrupt(self) -> None:
        """What ^C does."""
        self._program.send_signal(signal.SIGINT)

    def end(self) -> list[str]:
        """Wait for the end of the program; what is on the terminal then."""
        while self._read():
            pass
        self.out = "" if self._program.stdout is None else self._program.stdout.read()
        self.status = self._program.wait()
        return shown(self.written)

    def _read(self) -> bool:
        """Take up what is written; False at the end."""
        try:
            read = os.read(self._leader, 1 << 16)
        except OSError:  # on Linux, the program has closed its side
            return False
        self.written += read.decode()
        return bool(read)
