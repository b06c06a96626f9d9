"""What autograd's cached accumulators remember: while any old graph is alive, the shape that a leaf had then."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from secateur.doctor.setup import Setup

__all__ = ["remembered_shape", "stale"]


def remembered_shape(leaf: Tensor) -> torch.Size:
    """The shape that the next gradient of a leaf must have for autograd.

    Args:
        leaf: A tensor that requires a gradient and is computed from nothing.

    Returns:
        The shape, as its accumulator remembers it; the leaf's own shape if this torch does not tell.
    """
    metadata = getattr(get_gradient_edge(leaf).node, "_input_metadata", None)
    return torch.Size(metadata[0].shape) if metadata else leaf.shape


def stale(setup: Setup) -> Iterator[tuple[str, Tensor, torch.Size]]:
    """(first name, parameter, remembered shape) of every parameter whose accumulator remembers another shape."""
    for name, parameter in setup.trainable.items():
        if parameter.is_leaf:
            shape = remembered_shape(parameter)
            if shape != parameter.shape:
                yield name, parameter, shape
