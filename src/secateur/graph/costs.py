"""What a run costs, as sums over its ops: how many positions dims keep, MACs, bytes of activations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from secateur.graph.axis import Axis, Dim, Dims
from secateur.graph.solve import Flags, Solution

__all__ = ["Activation", "Counter", "Product", "activation_bytes", "macs"]


class Product(NamedTuple):
    """One matrix product or convolution: it costs the product of the sizes of its dims.

    Matrix products are (…, n, k, m); convolutions (batch, outputs, inputs of a group, window …, image …). It reads the
    named tensors of the model, or what was computed from them alone.
    """

    op: str
    dims: tuple[Dim, ...]
    groups: Dim = ()
    reads: tuple[str, ...] = ()

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution."""
        return "conv" in self.op


class Activation(NamedTuple):
    """One result of an op that takes memory of its own."""

    dims: Dims
    bytes_per_entry: int


class Counter:
    """How many positions dims keep once some classes are gone; each axis is looked at once.

    Args:
        solution: The classes.
        gone: Which of them go, shape (classes,).
    """

    def __init__(self, solution: Solution, gone: Flags) -> None:
        self._solution = solution
        self._gone = gone
        self._known: dict[Axis, int] = {}

    def __call__(self, dim: Dim) -> int:
        """Number of positions: a product keeps those that every one of its axes keeps."""
        return math.prod([self._of_axis(axis) for axis in dim])

    def _of_axis(self, axis: Axis) -> int:
        """Number of positions of one axis."""
        if axis.is_fixed:
            return axis.size
        root = axis.root
        if root not in self._known:
            self._known[root] = root.size - int(self._gone[self._solution.classes(root)].sum())
        return self._known[root]


def macs(products: Iterable[Product], count: Counter) -> int:
    """Multiply-accumulate operations of matrix products and convolutions."""
    return sum(math.prod([count(dim) for dim in product.dims]) for product in products)


def activation_bytes(activations: Iterable[Activation], count: Counter) -> int:
    """Bytes that the results of ops take if all are kept."""
    return sum(math.prod([count(dim) for dim in one.dims], start=one.bytes_per_entry) for one in activations)
