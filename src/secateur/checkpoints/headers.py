"""The head of a safetensors file: eight bytes that say how long it is, and JSON that says which tensor lies where."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from secateur._errors import InvalidInputError, UnsupportedError

__all__ = ["DTYPES", "LONGEST", "Place", "encoded", "read_header"]

_BITS = {
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

DTYPES: dict[str, torch.dtype] = {
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F32": torch.float32,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U16": torch.uint16,
    "BOOL": torch.bool,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""The dtypes whose entries can be looked at and cut; others are copied as bytes."""

_LENGTH = 8
_ALIGNMENT = 8

LONGEST = 100_000_000
"""Bytes of the longest header that safetensors reads."""


class Place(NamedTuple):
    """Dtype and shape of a tensor, and the bytes of the file that hold it."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> tuple[dict[str, Place], dict[str, str]]:
    """Read where the tensors of a file are, without reading them.

    Args:
        path: A safetensors file.

    Returns:
        The places by name, and the file's metadata.

    Raises:
        InvalidInputError: It is none, or is truncated.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or not 2 <= length <= LONGEST:
            raise _strange(path, "it does not begin with the length of a header")
        if size < _LENGTH + length:
            raise _truncated(path, size, _LENGTH + length)
        try:
            found = json.loads(file.read(length))
            metadata = found.pop("__metadata__", {})
            places = {name: _place(entry, _LENGTH + length) for name, entry in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _strange(path, f"its header cannot be read: {type(error).__name__}: {error}") from error
    _check(path, places, _LENGTH + length, size)
    return places, metadata


def encoded(shapes: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The head of a file whose tensors follow in this order.

    Args:
        shapes: Name, dtype and shape of each.
        metadata: The file's metadata.

    Raises:
        UnsupportedError: It would be longer than programs read.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, dtype, shape in shapes:
        start, end = end, end + num_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > LONGEST:
        raise UnsupportedError(
            "the header of a safetensors file cannot hold this much.", bytes=f"{len(text):,}", limit=f"{LONGEST:,}"
        )
    return len(text).to_bytes(_LENGTH, "little") + text


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor takes."""
    return _BITS[dtype] * math.prod(shape) // 8


def _place(entry: Mapping[str, Any], begin: int) -> Place:
    """One entry of a header."""
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in (start, stop, *shape)):
        raise ValueError("sizes are no counts")
    if stop - start != num_bytes(entry["dtype"], shape):
        raise ValueError(f"{stop - start} bytes for {entry['dtype']} {list(shape)}")
    return Place(entry["dtype"], shape, begin + start, begin + stop)


def _check(path: Path, places: Mapping[str, Place], begin: int, size: int) -> None:
    """Refuse tensors that overlap or leave gaps, and a file that ends before they do."""
    end = begin
    for place in sorted(places.values(), key=lambda place: (place.start, place.stop)):
        if place.start != end:
            raise _strange(path, "its tensors overlap or leave gaps")
        end = place.stop
    if end > size:
        raise _truncated(path, size, end)
    if end < size:
        raise _strange(path, f"{size - end} bytes follow the last tensor")


def _strange(path: Path, why: str) -> InvalidInputError:
    """What is no safetensors file."""
    return InvalidInputError(f"{os.fspath(path)} is not a safetensors file: {why}.")


def _truncated(path: Path, size: int, wanted: int) -> InvalidInputError:
    """What ends too early."""
    return InvalidInputError(
        f"{os.fspath(path)} is truncated.", bytes=f"{size:,}", promised=f"{wanted:,}", fix="copy or download it again"
    )
