"""Masks of packed bits, applied to any number of tensors in one call (``sources/masking.c``).

Whether that can be done to a tensor is asked first (`kernels_for`). What is passed then must fit: bits of one bit an
entry, in the order of the tensor's memory, which has neither gaps nor overlaps.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

import secateur._native as native

__all__ = ["BLOCK", "Kernels", "kernels_for"]

BLOCK = 64
"""Entries that have one word of bits."""

_PLAIN = (Tensor, nn.Parameter)


def kernels_for(tensor: Tensor) -> Kernels | None:
    """The kernels, if there is a library and they can touch the memory of a tensor.

    They cannot on other devices, nor where a tensor has none: one of a subclass (a fake one as well), one inside a
    function transform or while a graph is captured, one whose storage is empty.
    """
    if torch.compiler.is_compiling():  # asked first, as the compiler reads what follows, too
        return None
    library = native.library()
    if library is None or type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    try:
        return _kernels(library) if tensor.data_ptr() else None
    except RuntimeError:  # inside a function transform
        return None


class Kernels:
    """The functions of a library."""

    def __init__(self, library: native.Library) -> None:
        self._clear: Any = library.function("clear", [c_char_p, c_int64, c_int])
        self._fill: Any = library.function("fill", [c_char_p, c_uint64])
        self._is_clear: Any = library.function("is_clear", [c_char_p, c_int64, c_int64, c_int64], c_int)
        self._count_bits: Any = library.function("count_bits", [c_void_p, c_int64], c_int64)

    def clear_(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Set masked entries to 0.0, whatever they hold, and raise the version of each tensor.

        Args:
            pairs: Tensors, each with its bits.
        """
        self._clear(b"".join([_row(*pair) for pair in pairs]), len(pairs), torch.get_num_threads())
        increment_version([tensor for tensor, _ in pairs])

    def fill_(self, tensor: Tensor, bits: Tensor, number: float) -> None:
        """Set the masked entries of a real tensor to a number, whatever they hold, and raise its version."""
        one = bytes(torch.tensor([number], dtype=tensor.dtype).view(torch.uint8).tolist())
        self._fill(_row(tensor, bits), int.from_bytes(one * (8 // len(one)), "little"))
        increment_version(tensor)

    def is_clear(self, tensors: Sequence[Tensor], bits: Tensor, start: int, stop: int) -> bool:
        """Whether the masked ones among some entries are zero in all tensors.

        Args:
            tensors: Of one shape and memory order.
            bits: Their bits.
            start: First entry in the order of memory, a multiple of `BLOCK`.
            stop: End of the entries, a multiple of `BLOCK` or beyond the last.
        """
        rows = b"".join([_row(tensor, bits) for tensor in tensors])
        return bool(self._is_clear(rows, len(tensors), start // BLOCK, -(-stop // BLOCK)))

    def count_bits(self, bits: Tensor) -> int:
        """How many bits are set in whole words of 8 bytes."""
        return int(self._count_bits(bits.data_ptr(), bits.nbytes // 8))


_four = struct.Struct("4q").pack


def _row(tensor: Tensor, bits: Tensor) -> bytes:
    """What the kernels take for a tensor: where entries and bits begin, how many entries, bytes of each."""
    return _four(tensor.data_ptr(), bits.data_ptr(), tensor.numel(), tensor.itemsize)


@functools.cache
def _kernels(library: native.Library) -> Kernels:
    """The functions of a library, looked up once."""
    return Kernels(library)
