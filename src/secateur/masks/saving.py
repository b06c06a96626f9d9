"""Masks as plain tensors for a checkpoint: one bit a weight."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.masks.bits import Bits
from secateur.masks.packing import num_bytes, unpack

__all__ = ["from_state", "to_state"]

_BITS, _SHAPE = ".bits", ".shape"


def to_state(masks: Mapping[str, Bits]) -> dict[str, Tensor]:
    """Turn masks into two tensors each: ``"<name>.bits"``, uint8, and ``"<name>.shape"``, int64.

    Args:
        masks: Masks by dotted name.

    Returns:
        Tensors with memory of their own.
    """
    state = {}
    for name, bits in masks.items():
        state[name + _BITS] = bits.packed.clone()
        state[name + _SHAPE] = torch.tensor(bits.shape, dtype=torch.int64)
    return state


def from_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `to_state`.

    Args:
        state: What `to_state` returned, in any order.

    Returns:
        Bool masks by dotted name, True = kept.

    Raises:
        InvalidInputError: An entry that is not part of a saved mask, or bits and a shape that do not belong together.
    """
    for key in state:
        name, _, kind = key.rpartition(".")
        if f".{kind}" not in (_BITS, _SHAPE) or not {name + _BITS, name + _SHAPE} <= state.keys():
            raise InvalidInputError(f"{key!r} is no entry of saved masks.", fix="save masks.state_dict()")
    names = [key.removesuffix(_BITS) for key in state if key.endswith(_BITS)]
    return {name: _unpacked(name, state[name + _BITS], state[name + _SHAPE]) for name in names}


def _unpacked(name: str, bits: Tensor, shape: Tensor) -> Tensor:
    """One mask."""
    fits = isinstance(bits, Tensor) and isinstance(shape, Tensor) and bits.dtype == torch.uint8 and shape.dim() == 1
    size = torch.Size([int(n) for n in shape]) if fits else torch.Size()
    if not fits or bits.shape != (num_bytes(size.numel()),):
        raise InvalidInputError(
            f"the saved mask of {name!r} is damaged: its bits and its shape do not belong together.",
            shape=tuple(size),
            bits=tuple(bits.shape) if isinstance(bits, Tensor) else type(bits).__name__,
        )
    return unpack(bits, size)
