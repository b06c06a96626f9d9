"""Find the compiled library, see that it fits this version and this machine, and hand out its functions."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur._native.compiling import LIBRARY

__all__ = ["INTERFACE", "LEVELS", "Library", "library", "status"]

INTERFACE = 3
"""What `secateur_interface` of ``sources/level.c`` must return."""

LEVELS = ("portable", "avx2", "avx512")
"""Instruction sets that kernels are compiled for, the least first."""

_ELF_HEADER = struct.Struct("<40xQ10xHH2x")
"""Where the table of sections begins, bytes of an entry, entries."""


@dataclass(frozen=True, eq=False)
class Library:
    """The loaded library; equal to itself only, so that what is looked up in it can be kept by it.

    Args:
        handle: What ctypes has loaded.
        level: The instruction set whose functions are taken.
        path: The file.
    """

    handle: ctypes.CDLL
    level: str
    path: Path

    def function(self, name: str, arguments: Sequence[Any], result: Any = None) -> Any:
        """The function of a name for this machine's instruction set, with the types of its arguments and its result."""
        found = getattr(self.handle, f"secateur_{name}_{self.level}")
        found.argtypes, found.restype = list(arguments), result
        return found


@functools.cache
def library() -> Library | None:
    """The library for this machine, or none: then everything runs in pure torch, and `status` says why.

    Two variables of the environment are read once: ``SECATEUR_NATIVE`` is ``0`` (use none) or the path of a library,
    ``SECATEUR_LEVEL`` one of `LEVELS`, the highest instruction set to use.
    """
    loaded = _load()
    return loaded if isinstance(loaded, Library) else None


def status() -> str:
    """One line: which kernels are used, or why none.

    Example:
        >>> status().split(":")[0]
        'native kernels'
    """
    loaded = _load()
    if isinstance(loaded, str):
        return f"native kernels: none, {loaded}; everything runs in pure torch"
    openmp = "OpenMP" if loaded.handle.secateur_has_openmp() else "one thread"
    return f"native kernels: {loaded.level}, {openmp}"


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none."""
    asked = os.environ.get("SECATEUR_NATIVE", "")
    if asked == "0":
        return "switched off by SECATEUR_NATIVE=0"
    path = Path(asked) if asked else LIBRARY
    if not path.exists():
        return f"{path.name} was not compiled when the package was installed (is there a C compiler?)"
    try:
        if not _is_whole(path):
            return f"{path.name} does not load here (its end is missing)"
        handle = ctypes.CDLL(str(path))
        interface = handle.secateur_interface()
    except (OSError, AttributeError) as error:  # of another system or processor, or no library of ours
        return f"{path.name} does not load here ({error})"
    if interface != INTERFACE:
        return f"{path.name} belongs to another version of secateur (interface {interface}, not {INTERFACE})"
    level = LEVELS[handle.secateur_level()]
    highest = os.environ.get("SECATEUR_LEVEL", level)
    if highest not in LEVELS:
        return f"SECATEUR_LEVEL={highest} is none of {', '.join(LEVELS)}"
    return Library(handle, min(level, highest, key=LEVELS.index), path)


def _is_whole(path: Path) -> bool:
    """Whether an ELF file has its table of sections, which is last: to load what was cut off would kill the process."""
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER.size)
    if not header.startswith(b"\x7fELF"):
        return True
    if len(header) < _ELF_HEADER.size:
        return False
    start, size, number = _ELF_HEADER.unpack(header)
    return bool(path.stat().st_size >= start + size * number)
