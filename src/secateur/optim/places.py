"""Values of kept weights only, in the order in which a mask keeps them: row by row, whatever the strides.

Masks are packed bits here, as `secateur.masks.packing.pack` gives them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from secateur._native import stepping
from secateur.masks.packing import count_kept, unpack

__all__ = ["move", "place_", "positions", "same_bits", "spread", "take"]

_POSITIONS = WeakTensorKeyDictionary()
"""Packed bits -> positions of the kept ones, as long as the bits live."""


def positions(bits: Tensor, num_entries: int) -> Tensor:
    """Where a mask keeps entries: int64, sorted, of the flattened tensor; remembered until the bits are gone.

    Example:
        >>> from secateur.masks.packing import pack
        >>> positions(pack(torch.tensor([True, False, True])), 3)
        tensor([0, 2])
    """
    found: Tensor | None = _POSITIONS.get(bits)
    if found is None:
        found = _POSITIONS[bits] = unpack(bits, torch.Size([num_entries])).nonzero().squeeze(1)
    return found


def take(tensor: Tensor, bits: Tensor) -> Tensor:
    """The kept entries of a tensor.

    Args:
        tensor: As many entries as the mask, any shape and strides.
        bits: The mask.

    Returns:
        1-D, as long as the mask keeps entries; memory of its own.
    """
    return tensor.detach().reshape(-1).index_select(0, positions(bits, tensor.numel()).to(tensor.device))


def spread(values: Tensor, bits: Tensor, like: Tensor) -> Tensor:
    """Undo `take`: a new tensor beside `values`, of the shape and strides of `like`, 0 where nothing is kept."""
    made = torch.empty_like(like, dtype=values.dtype, device=values.device, requires_grad=False)
    return place_(made, values, bits)


def place_(tensor: Tensor, values: Tensor, bits: Tensor) -> Tensor:
    """Write values to the kept entries of a tensor, and 0 to all others; returns the tensor."""
    flat = tensor.view(-1).zero_() if tensor.is_contiguous() else values.new_zeros(tensor.numel())
    flat.index_copy_(0, positions(bits, tensor.numel()).to(flat.device), values)
    return tensor if tensor.is_contiguous() else tensor.copy_(flat.view(tensor.shape))


def move(values: Tensor, old: Tensor, new: Tensor, num_entries: int) -> Tensor:
    """The values of the entries that `new` keeps, from those of the entries that `old` keeps; 0 where there was none.

    Args:
        values: 1-D, as long as `old` keeps entries.
        old: A mask.
        new: Another mask of as many entries.
        num_entries: How many entries that is.

    Returns:
        1-D, as long as `new` keeps entries.
    """
    if stepping.can_move(values):
        return stepping.move_state(values.contiguous(), old.cpu().contiguous(), new.cpu(), count_kept(new))
    dense = values.new_zeros(num_entries)
    dense.index_copy_(0, positions(old, num_entries).to(values.device), values)
    return dense.index_select(0, positions(new, num_entries).to(values.device))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two masks keep the same entries, on whichever devices they are."""
    return one.shape == other.shape and torch.equal(one, other.to(one.device))
