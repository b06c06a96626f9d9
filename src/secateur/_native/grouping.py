"""The highest of each group of neighbours (``sources/grouping.c``)."""

from __future__ import annotations

import functools
from ctypes import c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

import secateur._native as native
from secateur._native.selecting import floats_of

__all__ = ["LARGEST_GROUP", "highest_of_groups"]

LARGEST_GROUP = 63
"""Entries that a group may have."""


def highest_of_groups(scores: Tensor, size: int, num_kept: int) -> Tensor | None:
    """Mark the highest scores of each group of neighbours, of equal ones the last.

    Args:
        scores: 1-D floating point, whole groups, no NaN.
        size: Entries of a group, at least 2.
        num_kept: Entries of a group that are marked, fewer than all.

    Returns:
        1-D bool; None if there is no library, another device or double precision, or groups are too large.
    """
    function, values = _function(native.library()), floats_of(scores)
    if function is None or values is None or size > LARGEST_GROUP:
        return None
    marks = torch.empty(values.shape, dtype=torch.bool)
    function(values.data_ptr(), values.numel(), size, num_kept, marks.data_ptr(), torch.get_num_threads())
    return marks


@functools.cache
def _function(library: native.Library | None) -> Any:
    """The function, if there is a library."""
    arguments = [c_void_p, c_int64, c_int, c_int, c_void_p, c_int]
    return None if library is None else library.function("keep_of_groups", arguments)
