"""Files of ``torch.save``, of which nothing but tensors and plain values is read."""

from __future__ import annotations

import pickle
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.checkpoints.headers import DTYPES

__all__ = ["Loaded", "converting", "is_pickled", "tensors_in"]

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PIECE = 1 << 20
_SAFETENSORS = ".safetensors"
_KEY = re.compile(r"[\w.-]+")
_CONVERT = (
    "convert the weights once, which runs none of the code that pickles may hold: "
    'python -c "import sys, torch, safetensors.torch as s; s.save_file({{name: tensor.contiguous().clone() '
    "for file in sys.argv[2:] for name, tensor in torch.load(open(file, 'rb'), map_location='cpu', weights_only=True)"
    "{keys}.items() if torch.is_tensor(tensor)}}, sys.argv[1], {{'format': 'pt'}})\" {files}"
)
_ITS_OWN = "torch.save(model.state_dict(), path), where the objects in it are known"


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
    return [Loaded(name, tensor) for name, tensor in _named(_read(path), "")]


def converting(paths: Sequence[Path], target: Path) -> dict[str, str]:
    """What an error says of pickled weights: the line that writes them as safetensors, as facts and ``fix``.

    Args:
        paths: The files, all of one kind.
        target: Where the line writes to.
    """
    try:
        ways = list(_states(_read(paths[0]), ""))
    except InvalidInputError as error:
        return {"weights": error.problem, "fix": error.fix}
    if not ways:
        return {"weights": f"no dict of tensors is in {paths[0]}", "fix": _ITS_OWN}
    others = {"also_there": ", ".join(ways[1:])} if ways[1:] else {}
    files = shlex.join([str(target), *map(str, paths)])
    return {**others, "fix": _CONVERT.format(keys=ways[0], files=files)}


def _states(value: Any, keys: str) -> Iterator[str]:
    """How to get at dicts that have tensors in them, the outermost first; those of optimizers have none by name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in value):
        return
    if any(isinstance(inner, Tensor) for inner in value.values()):
        yield keys
        return
    for key, inner in value.items():
        yield from _states(inner, f"{keys}['{key}']")


def _read(path: Path) -> Any:
    """What a file holds."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Validating sparse tensor invariants")  # which is what is wanted here
            if path.suffix == _SAFETENSORS:  # torch would not look at what is in it
                with path.open("rb") as file:
                    return torch.load(file, map_location="cpu", weights_only=True)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=not _is_old(path))
    except pickle.UnpicklingError as error:
        raise InvalidInputError(
            f"{path} holds more than tensors and plain values, and is not unpickled: that can run code.",
            fix=_ITS_OWN,
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read: {str(error).splitlines()[0][:120]}") from error


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
