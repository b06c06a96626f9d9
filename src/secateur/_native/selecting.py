"""Exactly the k lowest of many scores: marked, or counted (``sources/selecting.c``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

import secateur._native as native
from secateur._native.masking import kernels_for

__all__ = ["chosen", "counts_of_lowest", "floats_of"]

_SIZES, _HIGHEST, _MASKED, _REST = 1, 2, 4, 8
_EXACT_AS_FLOAT = (torch.float32, torch.float16, torch.bfloat16)


def chosen(
    scores: Tensor,
    count: int,
    *,
    kept: Tensor | None = None,
    masked: bool = False,
    highest: bool = False,
    sizes: bool = False,
    rest: bool = False,
) -> Tensor | None:
    """Mark the lowest scores of a tensor, of equal ones the first.

    Args:
        scores: 1-D floating point.
        count: How many.
        kept: 1-D bool; only those that are True may be chosen.
        masked: Only those that are False may be.
        highest: The highest instead of the lowest.
        sizes: Absolute values are compared.
        rest: Mark those that are not chosen instead.

    Returns:
        1-D bool; None if there is no library, another device or double precision; or a NaN (wherever it is), or less
        than `count` that may be chosen.
    """
    kernels = _kernels(native.library())
    values = floats_of(scores)
    if kernels is None or values is None or not 0 < count <= values.numel():
        return None
    kept = None if kept is None else kept.cpu().contiguous()
    marks = torch.empty(values.shape, dtype=torch.bool)
    flags = _SIZES * sizes | _HIGHEST * highest | _MASKED * masked | _REST * rest
    where = None if kept is None else kept.data_ptr()
    threads = torch.get_num_threads()
    failed = kernels.choose(values.data_ptr(), where, values.numel(), count, flags, marks.data_ptr(), threads)
    return None if failed else marks


def counts_of_lowest(scores: Sequence[Tensor], count: int) -> list[int] | None:
    """Count how many of the lowest scores of all tensors together each has; of equal ones the first are taken.

    Args:
        scores: 1-D floating point.
        count: How many.

    Returns:
        One count a tensor; None where `chosen` returns none.
    """
    kernels = _kernels(native.library())
    values = [floats for each in scores if (floats := floats_of(each)) is not None]
    if kernels is None or len(values) < len(scores) or count <= 0:
        return None
    counts = (c_int64 * len(values))()
    places = (c_void_p * len(values))(*(each.data_ptr() for each in values))
    numels = (c_int64 * len(values))(*(each.numel() for each in values))
    failed = kernels.lowest_counts(places, numels, len(values), count, counts, torch.get_num_threads())
    return None if failed else list(counts)


def floats_of(scores: Tensor) -> Tensor | None:
    """The scores as the kernels read them; None if they cannot, as on other devices and in double precision."""
    plain = scores.detach()
    if plain.dtype not in _EXACT_AS_FLOAT or (plain.numel() and kernels_for(plain) is None):
        return None
    return plain.float().resolve_neg().contiguous()


class _Kernels:
    """The functions of a library."""

    def __init__(self, library: native.Library) -> None:
        self.choose: Any = library.function(
            "choose", [c_void_p, c_void_p, c_int64, c_int64, c_int, c_void_p, c_int], c_int
        )
        self.lowest_counts: Any = library.function(
            "lowest_counts", [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int], c_int
        )


@functools.cache
def _kernels(library: native.Library | None) -> _Kernels | None:
    """Its functions, if there is a library."""
    return None if library is None else _Kernels(library)
