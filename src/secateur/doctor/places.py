"""Lines of the user's own code: where something was put into a module, and where it was noticed."""

from __future__ import annotations

import json
import linecache
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

__all__ = ["Place", "Places", "user_place"]

_TORCH, _OWN = (f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_INSTALLED, _PYTHON = (
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parents[1], Path(json.__file__).parents[1])
)
_ELSEWHERE = (_OWN, _TORCH, _INSTALLED, _PYTHON, "<")
_TOOLS = (_OWN, _TORCH, _PYTHON, "<")


@dataclass(frozen=True)
class Place:
    """A line of code.

    Args:
        file: The file.
        line: The number of the line.
    """

    file: str
    line: int

    @property
    def code(self) -> str:
        """What is written there."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        """File, line and code, with the file as seen from the current folder."""
        near = os.path.relpath(self.file)
        return f"{near if not near.startswith('..') else self.file}:{self.line}: {self.code}"

    def to_dict(self) -> dict[str, str | int]:
        """File, line and code as plain values."""
        return {"file": self.file, "line": self.line, "code": self.code}


def user_place() -> Place | None:
    """Find the innermost line that is the user's, of those that are being run.

    Returns:
        The first line that is neither of an installed package nor of Python; if there is none, as in a program that is
        installed itself, the first that is neither of torch nor of Python.
    """
    for others in (_ELSEWHERE, _TOOLS):
        for call in _callers(sys._getframe(1)):
            if not call.f_code.co_filename.startswith(others):
                return Place(os.path.abspath(call.f_code.co_filename), call.f_lineno)
    return None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


class Places:
    """Where parameters and modules were put into modules, and where their data was asked for or changed."""

    def __init__(self) -> None:
        self._order = count()
        self._put: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[int, Place]]] = weakref.WeakKeyDictionary()
        self._cut: dict[int, tuple[weakref.ref[Tensor], int, Place]] = {}
        self._read: dict[int, tuple[weakref.ref[Tensor], Place]] = {}

    def note(self, module: nn.Module, leaf: str, place: Place | None) -> None:
        """Something was put into a module under this name."""
        if place is not None:
            self._put.setdefault(module, {})[leaf] = (next(self._order), place)

    def note_cut(self, parameter: Tensor, place: Place | None) -> None:
        """A parameter was given data of another shape."""
        if place is not None:
            self._cut[id(parameter)] = (weakref.ref(parameter), next(self._order), place)

    def note_read(self, parameter: Tensor, place: Place | None) -> None:
        """A line has asked for the data of a parameter."""
        if place is not None:
            self._read[id(parameter)] = (weakref.ref(parameter), place)

    def reading_lines(self, model: nn.Module, names: Iterable[str]) -> tuple[Place, ...]:
        """The last lines that have asked for the data of parameters of a model, as far as they were remembered."""
        named = dict(model.named_parameters(remove_duplicate=False))
        found = [(named.get(name), self._read.get(id(named.get(name)))) for name in names]
        return tuple(dict.fromkeys(read[1] for p, read in found if read is not None and read[0]() is p))

    def lines(self, model: nn.Module, names: Iterable[str], since: int) -> tuple[Place, ...]:
        """The last lines that touched dotted names of a model: each tensor, or a module on the way to it.

        Args:
            model: The model.
            names: The names.
            since: What `now` said when all was well.

        Returns:
            The lines since then, each once; all of them if there are none since.
        """
        touched = [found for name in names if (found := self._last(model, name)) is not None]
        late = [place for order, place in touched if order >= since]
        return tuple(dict.fromkeys(late or [place for _, place in touched]))

    def now(self) -> int:
        """A number that is greater than those of all lines so far."""
        return next(self._order)

    def _last(self, model: nn.Module, name: str) -> tuple[int, Place] | None:
        """The last line that touched a dotted name."""
        touched: list[tuple[int, Place]] = []
        owner = model
        for leaf in name.split("."):
            touched += [found] if (found := self._put.get(owner, {}).get(leaf)) else []
            value = owner._modules.get(leaf, owner._parameters.get(leaf))
            if isinstance(value, Tensor) and (cut := self._cut.get(id(value))) and cut[0]() is value:
                touched.append(cut[1:])
            if not isinstance(value, nn.Module):
                break
            owner = value
        return max(touched, key=lambda found: found[0], default=None)
