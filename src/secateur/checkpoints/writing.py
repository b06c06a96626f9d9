"""Write safetensors files piece by piece: the head first, then the tensors one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from secateur.checkpoints.headers import encoded, num_bytes

__all__ = ["Written", "write_pieces"]


@dataclass(frozen=True)
class Written:
    """A tensor that is to be written.

    Args:
        name: Its name.
        dtype: Its dtype, in the words of safetensors.
        shape: Its shape.
        pieces: Its entries in order, in contiguous pieces of any shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[Tensor]


def write_pieces(path: Path, tensors: Iterable[Written], metadata: Mapping[str, str]) -> None:
    """Write a file.

    Args:
        path: Where to.
        tensors: What goes into it; the widest dtypes come first, so that all lie at multiples of their width.
        metadata: The file's metadata.
    """
    ordered = sorted(tensors, key=lambda tensor: -num_bytes(tensor.dtype, (8,)))
    with path.open("wb") as file:
        file.write(encoded(((each.name, each.dtype, each.shape) for each in ordered), metadata))
        for each in ordered:
            for piece in each.pieces:
                file.write(piece.contiguous().flatten().view(torch.uint8).numpy().data)
