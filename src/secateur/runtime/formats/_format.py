"""What a format is: a way to keep a sparse weight, and the product that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from secateur import _compat, _native

__all__ = ["Bound", "ConvFormat", "Geometry", "Library", "LinearFormat", "Parts"]

Library = Literal["torch", "kernels", "oneDNN"]
"""What computes a product: torch's own ops, the library of `secateur._native`, oneDNN through torch."""

Parts = tuple[Tensor, ...]
"""The tensors that a packed weight consists of: contiguous, on the weight's device."""

Bound = Callable[[Tensor], Tensor]
"""A product ready to be called with the input alone. It keeps alive what it points to."""


@dataclass(frozen=True)
class LinearFormat:
    """A format for ``y = x @ weight.T + bias``.

    Args:
        name: Its name in tables and files.
        library: What it is computed by.
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
        is_dense: It multiplies zeros, too, so that it is worth a trial without any. ``bind`` then makes a copy of the
            weight in an order of its own.
    """

    name: str
    library: Library
    misfit: Callable[[Tensor], str]
    pack: Callable[[Tensor, torch.dtype], Parts]
    unpack: Callable[[Parts, torch.Size], Tensor]
    bind: Callable[[Parts, torch.Size, Tensor | None, bool], Bound]
    rows: tuple[int, float] = (0, float("inf"))
    is_dense: bool = False

    def absence(self) -> str:
        """Why this machine cannot run it; ``""`` if it can."""
        return _absence(self.library)


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

    def overhangs(self, window: tuple[int, ...]) -> bool:
        """Whether a window of a height and a width can lie in the zeros around the image alone.

        oneDNN writes past its memory for some of those, with the channels last.
        """
        sides = zip(self.padding, self.dilation, window, strict=True)
        return any(pad > step * (size - 1) for pad, step, size in sides)


@dataclass(frozen=True)
class ConvFormat:
    """A format for 2-D convolutions of one group.

    Args:
        name: As for `LinearFormat`.
        library: As for `LinearFormat`.
        misfit: Takes the weight, float32 ``(outputs, inputs, height, width)``, and the geometry.
        pack: Takes such a weight and the dtype of the values; gives the parts.
        unpack: As for `LinearFormat`.
        bind: Takes parts, the weight's shape, the bias or none, whether a ReLU follows, and the geometry; gives a
            function from a float32 ``(batch, inputs, height, width)`` that is contiguous in ``order`` to a new output
            that is so, too.
        is_dense: As for `LinearFormat`.
        order: The order of images in memory.
    """

    name: str
    library: Library
    misfit: Callable[[Tensor, Geometry], str]
    pack: Callable[[Tensor, torch.dtype], Parts]
    unpack: Callable[[Parts, torch.Size], Tensor]
    bind: Callable[[Parts, torch.Size, Tensor | None, bool, Geometry], Bound]
    is_dense: bool = False
    order: torch.memory_format = torch.contiguous_format

    def absence(self) -> str:
        """Why this machine cannot run it; ``""`` if it can."""
        return _absence(self.library)


def _absence(library: Library) -> str:
    """Why a library is not there; ``""`` if it is."""
    if library == "kernels":
        return "" if _native.library() is not None else _native.status()
    if library == "oneDNN":
        return "" if _compat.has_prepacking() else "torch is without oneDNN here"
    return ""
