"""Where the zeros of a tensor lie, found from a few rows at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["BLOCKS", "ROW_MULTIPLE", "Zeros", "nonzero"]

GROUPS = (4, 8, 16)
"""Sizes of the groups of neighbours along dim 1 whose fullest one is looked for: M of N:M."""

BLOCKS = ((16, 1), (1, 16), (4, 4), (8, 8), (16, 16), (32, 32))
"""Blocks (positions along dim 0, along dim 1) of which it is asked whether zeros fill them."""

ROW_MULTIPLE = 32
"""Of how many rows the pieces must be a multiple, so that no block is in two of them."""


def nonzero(tensor: Tensor) -> Tensor:
    """Which entries of a tensor of any dtype are not zero: -0.0 is zero and nan is not."""
    return (tensor.half() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor) != 0


class Zeros:
    """What is known of the zeros so far.

    Args:
        shape: Shape of the tensor, ``(outputs, inputs, …)``.

    Attributes:
        count: Zeros.
        rows: Whether each position of dim 0 has an entry that is not zero.
        columns: The same along dim 1.
        fullest: M -> entries other than zero in the fullest group of M neighbours along dim 1.
        in_blocks: Block -> zeros that lie in blocks of nothing but zeros.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        is_weight = len(shape) >= 2 and math.prod(shape) > 0
        self.count = 0
        self.rows = torch.zeros(shape[0] if is_weight else 0, dtype=torch.bool)
        self.columns = torch.zeros(shape[1] if is_weight else 0, dtype=torch.bool)
        self.fullest = {size: 0 for size in GROUPS if is_weight and shape[1] % size == 0}
        self.in_blocks = {b: 0 for b in BLOCKS if is_weight and not shape[0] % b[0] and not shape[1] % b[1]}
        self._is_weight = is_weight
        self._dims = shape

    def add(self, first: int, nonzero: Tensor) -> None:
        """Look at some rows.

        Args:
            first: The number of the first one along dim 0.
            nonzero: Bool, the rows.
        """
        zeros = nonzero.numel() - int(nonzero.count_nonzero())
        self.count += zeros
        if not self._is_weight:
            return
        flat = nonzero.reshape(-1, self._dims[1], math.prod(self._dims[2:]))
        self.rows[first : first + len(flat)] |= flat.flatten(1).any(1)
        if not zeros:  # which is quickly told of a dense tensor
            self.columns[:] = True
            self.fullest = {size: size for size in self.fullest}
            return
        self.columns |= flat.any(0).any(1)
        for size in self.fullest:
            counts = flat.view(len(flat), -1, size, flat.shape[2]).sum(2, dtype=torch.uint8)
            self.fullest[size] = max(self.fullest[size], int(counts.max()))
        for high, wide in self.in_blocks:
            blocks = flat.view(len(flat) // high, high, flat.shape[1] // wide, wide, flat.shape[2])
            empty = int((~blocks.any(3).any(1)).count_nonzero())
            self.in_blocks[high, wide] += empty * high * wide

    @property
    def patterns(self) -> tuple[str, ...]:
        """Which patterns the zeros follow: ``"2:4"``, the fewest of each M; ``"16x1"``, blocks that hold them all."""
        groups = [f"{n}:{size}" for size, n in self.fullest.items() if 0 < n <= size // 2]
        blocks = [f"{high}x{wide}" for (high, wide), inside in self.in_blocks.items() if 0 < inside == self.count]
        return (*groups, *blocks)
