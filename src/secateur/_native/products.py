"""Products of the library with packed weights: one alone, or several that follow each other in one call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_int, c_int64, c_void_p, cast
from typing import Any

import torch
from torch import Tensor

import secateur._native as native
from secateur._errors import UnsupportedError

__all__ = ["Product", "chained", "function"]


class Product:
    """The function from a contiguous float32 ``(rows, inputs)`` to a new ``(rows, outputs)`` that a kernel computes.

    Args:
        kernel: Name of the library's function that takes the weight, x, y, the number of rows and that of threads, and
            returns 0 if it found the memory that it needs.
        weight: The weight as the function takes it.
        outputs: Width of y.
        held: What the weight points to, to be kept alive.

    Raises:
        UnsupportedError: There is no library.
    """

    __slots__ = ("function", "held", "outputs", "weight", "where")

    def __init__(self, kernel: str, weight: Structure, outputs: int, held: object) -> None:
        self.function = function(kernel, (c_void_p, c_void_p, c_void_p, c_int64, c_int))
        self.weight, self.where, self.outputs, self.held = weight, byref(weight), outputs, held

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply.

        Raises:
            MemoryError: The function found no memory to work in.
        """
        rows = x.shape[0]
        y = torch.empty(rows, self.outputs, dtype=torch.float32)
        if self.function(self.where, x.data_ptr(), y.data_ptr(), rows, torch.get_num_threads()):
            raise MemoryError(f"no memory to multiply {rows} rows in")
        return y


def chained(products: Sequence[Product]) -> Product:
    """Products of which each takes the output of the one before, as one.

    Args:
        products: One or more.
    """
    links = (_Link * len(products))(*(_link(each) for each in products))
    widest = max((each.outputs for each in products[:-1]), default=0)
    chain = _Chain(cast(links, c_void_p), len(products), widest)
    return Product("chain_product", chain, products[-1].outputs, (tuple(products), links))


def function(name: str, arguments: Sequence[type]) -> Any:
    """A function of the library, which returns 0 if it could do its work.

    Raises:
        UnsupportedError: There is no library.
    """
    library = native.library()
    if library is None:
        raise UnsupportedError("a native format cannot be used here.", found=native.status())
    return library.function(name, arguments, c_int)


class _Link(Structure):
    """`struct link`."""

    _fields_ = (("multiply", c_void_p), ("weight", c_void_p), ("outputs", c_int64))


class _Chain(Structure):
    """`struct chain`."""

    _fields_ = (("links", c_void_p), ("count", c_int64), ("widest", c_int64))


def _link(product: Product) -> _Link:
    """A product as the library calls it itself."""
    return _Link(cast(product.function, c_void_p), cast(product.where, c_void_p), product.outputs)
