"""A checkpoint: one safetensors file, or several with an index that says which tensor is in which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from secateur._errors import InvalidInputError
from secateur.checkpoints.headers import read_header
from secateur.checkpoints.pickled import converting, is_pickled
from secateur.checkpoints.stored import Stored

__all__ = ["Checkpoint", "Shard", "open_checkpoint"]

INDEX, WHOLE = ".safetensors.index.json", "model.safetensors"
_PICKLES = ("bin", "pt", "pth", "ckpt")


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint.

    Args:
        path: The file.
        tensors: What is in it, in the order of the file.
        metadata: The file's metadata.
    """

    path: Path
    tensors: tuple[Stored, ...]
    metadata: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """All files of a checkpoint.

    Args:
        shards: The files.
        index: The file that lists them; None for a checkpoint of one file.
        listed: What the index says.
    """

    shards: tuple[Shard, ...]
    index: Path | None = None
    listed: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Stored]:
        """Its tensors, file by file."""
        return (tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self)


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read the heads of a checkpoint's files; tensors are read when they are asked for.

    Args:
        path: A safetensors file, the index of a sharded checkpoint (``model.safetensors.index.json``), or a folder with
            one of them, or with ``model.safetensors`` beside others.

    Returns:
        The checkpoint.

    Raises:
        InvalidInputError: There is no such file, or a file is none of these, truncated, or not what the index says; or
            there are pickles only.
    """
    place = _found(Path(path))
    if not place.name.endswith(INDEX):
        return Checkpoint((_shard(place),))
    listed = _listed(place)
    names = dict.fromkeys(listed["weight_map"].values())
    missing = [name for name in names if not (place.parent / name).is_file()]
    if missing:
        raise InvalidInputError(f"{place} lists files that are not there.", missing=", ".join(missing[:4]))
    shards = tuple(_shard(place.parent / name) for name in names)
    where = {tensor.name: shard.path.name for shard in shards for tensor in shard.tensors}
    if where != listed["weight_map"]:
        wrong = sorted(name for name, _ in where.items() ^ listed["weight_map"].items())
        raise InvalidInputError(f"{place} and its files do not belong together.", tensors=", ".join(wrong[:4]))
    return Checkpoint(shards, place, listed)


def _found(path: Path) -> Path:
    """The file that is meant."""
    if path.is_dir():
        whole = [path / WHOLE] if (path / WHOLE).is_file() else sorted(path.glob("*.safetensors"))
        there = sorted(path.glob(f"*{INDEX}")) or whole
        if not there:
            _refuse_pickles(path)
        if len(there) != 1:
            names = ", ".join(file.name for file in there[:4]) or "no safetensors files"
            raise InvalidInputError(f"{path} is a folder, in which it is not clear what is meant.", there=names)
        return there[0]
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}.")
    if is_pickled(path):
        raise InvalidInputError(
            f"{path} is not a safetensors file but one of torch.save, which can run code as it is read: so it is not.",
            **converting([path], path.with_suffix(f"{'.converted' * (path.suffix == '.safetensors')}.safetensors")),
        )
    return path


def _refuse_pickles(folder: Path) -> None:
    """Refuse a folder that has its weights in pickles only."""
    pickled = sorted(file.name for suffix in _PICKLES for file in folder.glob(f"*.{suffix}"))
    weights = [name for name in pickled if name.startswith("pytorch_model")] or pickled  # not training_args.bin
    if weights:
        raise InvalidInputError(
            f"{folder} has its weights in pickles only, which can run code as they are read: so they are not.",
            found=", ".join(weights[:4]) + (" …" if weights[4:] else ""),
            **converting([folder / name for name in weights], folder / WHOLE),
        )


def _shard(path: Path) -> Shard:
    """One file."""
    places, metadata = read_header(path)
    ordered = sorted(places.items(), key=lambda item: item[1].start)
    return Shard(path, tuple(Stored(name, path, place) for name, place in ordered), metadata)


def _listed(path: Path) -> dict[str, Any]:
    """What an index says; names of files that lead elsewhere are refused."""
    try:
        listed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = listed["weight_map"].values()
        is_sound = all(isinstance(name, str) and Path(name).name == name for name in names) and bool(names)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_sound = False
    if not is_sound:
        raise InvalidInputError(f"{path} is no index of a sharded checkpoint.")
    return listed
