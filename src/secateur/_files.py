"""Files that the library writes: safetensors, with a JSON text under one key of the header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import safetensors

from secateur._errors import InvalidInputError

__all__ = ["opened"]


@contextmanager
def opened(path: str | PathLike[str], key: str, kind: str, *, fix: str = "") -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a file of one of the library's formats.

    Args:
        path: The file.
        key: Where its JSON text is in the header.
        kind: The format that it must have.
        fix: What to do with another file.

    Yields:
        The open safetensors file and what its JSON text holds.

    Raises:
        InvalidInputError: It is no safetensors file, or one of another format.
    """
    try:
        file = safetensors.safe_open(path, "pt")
    except safetensors.SafetensorError as error:
        raise InvalidInputError(f"{path} is not a safetensors file.", found=str(error)[:80], fix=fix) from error
    with file:
        text = (file.metadata() or {}).get(key)
        header = _parsed(text)
        if header.get("format") != kind:
            raise InvalidInputError(
                f"{path} is not a file of the kind {kind}.", format=header.get("format", "none"), fix=fix
            )
        yield file, header


def _parsed(text: str | None) -> dict[str, Any]:
    """The JSON text of a header; empty if it is none."""
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
