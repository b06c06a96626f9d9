"""Tensors as text, for the header of a file whose tensors are to be the model's alone."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from typing import Any

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.masks.packing import num_bytes, pack, unpack

__all__ = ["from_text", "to_text"]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
        *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    )
}


def to_text(tensor: Tensor) -> list[str | list[int]]:
    """Turn a tensor into dtype, shape, and base64 of its compressed entries: one bit each of bool, bytes of others."""
    entries = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = pack(entries) if entries.dtype == torch.bool else entries.flatten().view(torch.uint8)
    text = base64.b64encode(zlib.compress(flat.numpy().tobytes())).decode()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), text]


def from_text(what: str, entry: Any) -> Tensor:
    """Undo `to_text`.

    Args:
        what: What the tensor is, for the error.
        entry: What `to_text` has made.

    Raises:
        InvalidInputError: It is nothing of that kind, or its entries are not those of its shape.
    """
    try:
        name, dims, text = entry
        dtype, shape = _DTYPES[name], torch.Size(dims)
        size = num_bytes(shape.numel()) if dtype == torch.bool else math.prod(shape) * dtype.itemsize
        flat = bytearray(zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1))
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError, binascii.Error, zlib.error) as error:
        raise InvalidInputError(f"{what} is damaged: it cannot be decoded.", found=str(error)[:80]) from error
    if len(flat) != size or min(shape, default=0) < 0:
        raise InvalidInputError(
            f"{what} is damaged: its entries and its shape do not belong together.", shape=tuple(shape)
        )
    if not size:
        return torch.empty(shape, dtype=dtype)
    entries = torch.frombuffer(flat, dtype=torch.uint8)
    return unpack(entries, shape) if dtype == torch.bool else entries.view(dtype).view(shape)
