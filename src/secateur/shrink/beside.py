"""What a file of `save` has beside its tensors, in its header: masks, and buffers that are in no state dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur._files import headers_in
from secateur.checkpoints.zeros import nonzero
from secateur.shrink.files import Part, names_in, tensor_in

__all__ = ["buffers_in", "buffers_part", "masks_in", "masks_part", "zero_"]

_MASKS, _BUFFERS = "secateur.masks.1", "secateur.buffers.1"


def masks_part(masks: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Part:
    """What says which entries are masked, where all that are masked are zero: the zeros that are not masked."""
    return Part({"format": _MASKS}, {name: mask & ~nonzero(tensors[name]) for name, mask in masks.items()})


def buffers_part(buffers: Mapping[str, Tensor]) -> Part:
    """Buffers."""
    return Part({"format": _BUFFERS}, buffers)


def masks_in(file: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `masks_part`.

    Args:
        file: The open file.
        tensors: Its tensors, under all of their names.

    Raises:
        InvalidInputError: What is in the header cannot be decoded, or does not fit the tensors.
    """
    masks = {}
    for name, kept in _held_in(file, "masks").items():
        if name not in tensors or kept.shape != tensors[name].shape or kept.dtype != torch.bool:
            found = tuple(tensors[name].shape) if name in tensors else "no such tensor"
            raise InvalidInputError(
                f"the mask of {name!r} is of another shape than what is loaded.", mask=tuple(kept.shape), loaded=found
            )
        masks[name] = nonzero(tensors[name]) | kept
    return masks


def buffers_in(file: Any) -> dict[str, Tensor]:
    """Undo `buffers_part`.

    Raises:
        InvalidInputError: They cannot be decoded.
    """
    return _held_in(file, "buffers")


def zero_(tensor: Tensor, where: Tensor) -> None:
    """Set entries to zero, of any dtype."""
    bits = tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    bits.masked_fill_(where, 0)


def _held_in(file: Any, key: str) -> dict[str, Tensor]:
    """The tensors of a part of the header; none if the file has no such part."""
    header = headers_in(file.metadata()).get(key)
    return {} if header is None else {name: tensor_in(file, header, name) for name in names_in(file, header)}
