"""Files of ``torch.save``, of which nothing but tensors and plain values is read."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.checkpoints.headers import DTYPES

__all__ = ["Loaded", "is_pickled", "tensors_in"]

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Loaded:
    """A tensor of such a file, with the attributes of `Stored`.

    Args:
        name: Its name.
        tensor: The tensor.
    """

    name: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """Its dtype, in the words of safetensors where they have one."""
        return _NAMES.get(self.tensor.dtype, str(self.tensor.dtype).removeprefix("torch."))

    @property
    def num_bytes(self) -> int:
        """Bytes of its entries."""
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def has_entries(self) -> bool:
        """Whether its entries can be looked at: they are dense, and of a plain dtype."""
        return self.tensor.layout == torch.strided and self.tensor.dtype in _NAMES

    def rows(self, *, multiple: int = 1) -> Iterator[tuple[int, Tensor]]:
        """Its rows along dim 0, some at a time."""
        rows = self.tensor.reshape(1) if self.tensor.dim() == 0 else self.tensor
        count = rows.numel() // max(1, len(rows))
        size = multiple * max(1, _PIECE // (multiple * max(1, count)))
        for first in range(0, len(rows) if count else 0, size):
            yield first, rows[first : first + size]


def is_pickled(path: Path) -> bool:
    """Whether a file begins like one of ``torch.save``; one of safetensors has JSON after eight bytes of any value."""
    with path.open("rb") as file:
        begin = file.read(9)
    return begin[8:] != b"{" and begin.startswith((_ZIP, _PICKLE))


def tensors_in(path: Path) -> list[Loaded]:
    """The tensors of a file, those in dicts and lists by dotted names.

    Args:
        path: A file of ``torch.save``. Tensors in it are read when they are looked at, if its format allows it.

    Raises:
        InvalidInputError: It holds objects that only unpickling could bring back, or it is damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Validating sparse tensor invariants")  # which is what is wanted here
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=not _is_old(path))
    except pickle.UnpicklingError as error:
        raise InvalidInputError(
            f"{path} holds more than tensors and plain values, and is not unpickled: that can run code.",
            fix="torch.save(model.state_dict(), path), where the objects in it are known",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read: {str(error).splitlines()[0][:120]}") from error
    return [Loaded(name, tensor) for name, tensor in _named(found, "")]


def _is_old(path: Path) -> bool:
    """Whether a file is in the format before torch 1.6, which cannot be read in parts."""
    with path.open("rb") as file:
        return file.read(4) != _ZIP


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _named(inner, f"{name}.{place}".lstrip("."))
