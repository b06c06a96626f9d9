"""Where in memory a tensor lies."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["geometry_of", "storage_of"]


def storage_of(tensor: Tensor) -> int:
    """The identity of a tensor's storage, 0 if it has none."""
    if tensor.layout != torch.strided:
        return 0
    return int(tensor.untyped_storage()._cdata)


def geometry_of(tensor: Tensor) -> tuple[object, ...]:
    """Where in its storage a tensor lies."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
