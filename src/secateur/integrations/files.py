"""The state of an attachment in a folder that a trainer writes: one safetensors file beside the weights."""

from __future__ import annotations

import json
import os
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.tickets.nested import from_json, to_json
from secateur.tickets.snapshot import read, write

__all__ = ["has_state", "read_state", "write_state"]

_KEY, _FORMAT, _TEXT = "pruning", "secateur.Pruning.1", "json"


def write_state(folder: str | PathLike[str], state: dict[str, Any], number: int = 0) -> None:
    """Write a state; the file is there in whole or not at all.

    Args:
        folder: The folder of the checkpoint.
        state: Numbers, words, tensors, and lists, tuples and dicts of these.
        number: Which model of the folder it belongs to.

    Raises:
        UnsupportedError: It holds something else.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(to_json(state, "state", tensors)).encode()
    tensors[_TEXT] = torch.frombuffer(bytearray(text), dtype=torch.uint8)  # headers hold 100 MB, and histories grow
    path = _path(folder, number)
    beside = path.with_suffix(".part")
    write(beside, _KEY, _FORMAT, tensors, {})
    os.replace(beside, path)


def has_state(folder: str | PathLike[str], number: int = 0) -> bool:
    """Whether a folder has the file."""
    return _path(folder, number).exists()


def read_state(folder: str | PathLike[str], number: int = 0) -> dict[str, Any]:
    """Read what `write_state` has written.

    Raises:
        InvalidInputError: The folder has no such file, or it is none.
    """
    path = _path(folder, number)
    if not path.exists():
        raise InvalidInputError(
            f"the checkpoint says nothing of pruning: there is no {path.name} in it.",
            folder=folder,
            fix="load it before Pruning is attached, if it was saved without",
        )
    tensors, _ = read(path, _KEY, _FORMAT, "secateur.integrations")
    try:
        state: dict[str, Any] = from_json(json.loads(tensors.pop(_TEXT).numpy().tobytes()), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is damaged: its text and its tensors do not belong together.") from error
    return state


def _path(folder: str | PathLike[str], number: int) -> Path:
    """Where the file is, named as Accelerate names those of several models."""
    return Path(folder) / f"pruning{f'_{number}' if number else ''}.safetensors"
