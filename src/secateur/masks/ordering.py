"""The order in which the entries of a tensor lie in memory, and bits that are packed in it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from secateur.masks.packing import pack, unpack

__all__ = ["Order", "memory_order", "pack_in", "row_major", "unpack_from"]

Order = tuple[int, ...]
"""Dims, from the one whose steps are longest to the one whose entries are neighbours."""


def row_major(shape: torch.Size) -> Order:
    """The order of a contiguous tensor.

    Example:
        >>> row_major(torch.Size([2, 3]))
        (0, 1)
    """
    return tuple(range(len(shape)))


def memory_order(tensor: Tensor) -> Order | None:
    """The order of a tensor's memory; None if its entries have gaps between them, or share memory.

    Example:
        >>> memory_order(torch.zeros(2, 3).t()), memory_order(torch.zeros(2, 3)[:, :2])
        ((1, 0), None)
    """
    return row_major(tensor.shape) if tensor.is_contiguous() else _order(tensor.shape, tensor.stride())


@functools.lru_cache(maxsize=1024)
def _order(shape: torch.Size, strides: tuple[int, ...]) -> Order | None:
    """The same of a shape and strides; dims of one position, whose strides mean nothing, come first."""
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim] > 1, -strides[dim] if shape[dim] > 1 else 0))
    step = 1
    for dim in reversed(order):
        if shape[dim] > 1 and strides[dim] != step:
            return None
        step *= shape[dim]
    return tuple(order)


def pack_in(order: Order, mask: Tensor) -> Tensor:
    """Pack a mask into bits in some order.

    Args:
        order: Of which the first bit is that of the first entry.
        mask: Bool, True = kept.

    Returns:
        uint8, see `packing.pack`.
    """
    return pack(mask.permute(order))


def unpack_from(order: Order, bits: Tensor, shape: torch.Size) -> Tensor:
    """Undo `pack_in`.

    Args:
        order: The order.
        bits: uint8, as `pack_in` gives it.
        shape: Shape of the mask.

    Returns:
        Contiguous bool mask of this shape, with memory of its own.
    """
    mask = unpack(bits, torch.Size([shape[dim] for dim in order]))
    if order == row_major(shape):
        return mask
    return mask.permute([order.index(dim) for dim in range(len(shape))]).contiguous()
