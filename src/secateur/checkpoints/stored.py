"""One tensor on disk, read a few rows at a time into memory that is used again."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, UnsupportedError
from secateur.checkpoints.headers import DTYPES, Place

__all__ = ["Stored"]

_PIECE = 1 << 20  # what fits into a core's own cache together with what is made of it
_SHARE = 4  # a piece is at most this part of the tensor, so that it and what is made of it are less than the whole


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Args:
        name: Its name.
        path: The file.
        place: Where in the file it is.
    """

    name: str
    path: Path
    place: Place

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.place.shape

    @property
    def dtype(self) -> str:
        """Its dtype, in the words of safetensors: ``"F32"``, ``"BF16"``."""
        return self.place.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return self.place.stop - self.place.start

    @property
    def has_entries(self) -> bool:
        """Whether its entries are of a dtype that torch can compute with."""
        return self.dtype in DTYPES

    def raw(self) -> Iterator[Tensor]:
        """Its bytes in order, uint8 and 1-D; each piece is valid until the next."""
        yield from self._read(self.place.start, self.num_bytes, min(self.num_bytes, _PIECE))

    def rows(self, lead: int = 0, *, multiple: int = 1) -> Iterator[tuple[int, Tensor]]:
        """Its rows in order, some at a time; each piece is valid until the next.

        Args:
            lead: The dim along which rows lie. Dims before it have one position each, and are left out.
            multiple: Of how many rows a piece is a multiple, but the last.

        Yields:
            The first row's number, and the rows with their true dtype.

        Raises:
            UnsupportedError: The dtype is none that torch can compute with.
        """
        if not self.has_entries:
            raise UnsupportedError(f"{self.name!r} cannot be read entry by entry.", dtype=self.dtype, shape=self.shape)
        if self.num_bytes == 0:
            return
        dims = self.shape[lead:]
        row = self.num_bytes // (dims[0] if dims else 1)
        size = multiple * row * max(1, min(_PIECE, self.num_bytes // _SHARE) // (multiple * row))
        first = 0
        for piece in self._read(self.place.start, self.num_bytes, min(size, self.num_bytes)):
            rows = piece.view(DTYPES[self.dtype]).view(-1, *dims[1:])
            yield first, rows
            first += len(rows)

    @property
    def lead(self) -> int:
        """The first dim of more than one position, along which rows are shortest."""
        return next((dim for dim, size in enumerate(self.shape) if size > 1), max(0, len(self.shape) - 1))

    def tensor(self) -> Tensor:
        """All of it."""
        whole = torch.empty(math.prod(self.shape), dtype=DTYPES[self.dtype])
        for first, rows in self.rows():
            count = rows.numel() // max(1, len(rows))
            whole[first * count : (first + len(rows)) * count] = rows.flatten()
        return whole.view(self.shape)

    def _read(self, start: int, size: int, most: int) -> Iterator[Tensor]:
        """Bytes of the file, at most so many at once."""
        buffer = torch.empty(most, dtype=torch.uint8)
        memory = buffer.numpy().data
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while size:
                wanted = min(size, most)
                if _filled(file, memory[:wanted]) < wanted:
                    raise InvalidInputError(f"{self.path} has become shorter while it was read.")
                yield buffer[:wanted]
                size -= wanted


def _filled(file: io.FileIO, memory: memoryview) -> int:
    """How many bytes could be read: all that fit, unless the file ends."""
    done = 0
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            break
        done += count
    return done
