"""What a format is: a way to keep a sparse weight, and the product that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Bound", "ConvFormat", "Geometry", "LinearFormat", "Parts"]

Parts = tuple[Tensor, ...]
"""The tensors that a packed weight consists of: contiguous, on the weight's device."""

Bound = Callable[[Tensor], Tensor]
"""A product ready to be called with the input alone. It keeps alive what it points to."""


@dataclass(frozen=True)
class LinearFormat:
    """A format for ``y = x @ weight.T + bias``.

    Args:
        name: Its name in tables and files.
        is_native: It needs the library of `secateur._native`.
        misfit: Takes a weight, float32 ``(outputs, inputs)`` with zeros where it is masked; says why the format cannot
            or need not hold it, ``""`` if it can.
        pack: Takes such a weight and the dtype that values are kept in, float32 or bfloat16 (arithmetic is always in
            float32); gives the parts.
        unpack: Takes parts and the weight's shape; gives the float32 weight back, exactly but for the rounding of its
            values.
        bind: Takes parts, the weight's shape, the float32 bias ``(outputs,)`` or none, and whether negative outputs
            become zero (a ReLU that follows); gives a function from a contiguous float32 ``(rows, inputs)`` to a new
            contiguous ``(rows, outputs)``, for any number of rows, none included.
        rows: Least and greatest number of rows for which it is worth a trial. It is right for every number.
    """

    name: str
    is_native: bool
    misfit: Callable[[Tensor], str]
    pack: Callable[[Tensor, torch.dtype], Parts]
    unpack: Callable[[Parts, torch.Size], Tensor]
    bind: Callable[[Parts, torch.Size, Tensor | None, bool], Bound]
    rows: tuple[int, float] = (0, float("inf"))


class Geometry(NamedTuple):
    """How a 2-D convolution moves over its image.

    Args:
        stride: Step of the window, down and right.
        padding: Zeros around the image, above and below, left and right.
        dilation: Distance of the window's entries, down and right.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ConvFormat:
    """A format for 2-D convolutions of one group.

    Args:
        name: As for `LinearFormat`.
        is_native: As for `LinearFormat`.
        misfit: Takes the weight, float32 ``(outputs, inputs, height, width)``, and the geometry.
        pack: Takes such a weight and the dtype of the values; gives the parts.
        unpack: As for `LinearFormat`.
        bind: Takes parts, the weight's shape, the bias or none, whether a ReLU follows, and the geometry; gives a
            function from a contiguous float32 ``(batch, inputs, height, width)`` to a new contiguous output.
    """

    name: str
    is_native: bool
    misfit: Callable[[Tensor, Geometry], str]
    pack: Callable[[Tensor, torch.dtype], Parts]
    unpack: Callable[[Parts, torch.Size], Tensor]
    bind: Callable[[Parts, torch.Size, Tensor | None, bool, Geometry], Bound]
