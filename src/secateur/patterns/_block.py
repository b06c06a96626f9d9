"""Block: rectangles of neighbours are kept or removed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from secateur._errors import InvalidInputError
from secateur.patterns._checks import check_kept, is_count, undivided
from secateur.patterns._norms import signed_norm
from secateur.patterns._pattern import Pattern

__all__ = ["Block"]


@dataclass(frozen=True)
class Block(Pattern):
    r"""Every block of neighbours is a unit; blocks start at the first entry and tile the tensor in row-major order.

    ``Block((4, 4))`` are squares of a matrix; ``Block((16, 1))`` has groups of 16 outputs that share their inputs, as
    fast kernels for CPUs ask for. Dims beyond those of the block are cut entry by entry: in the weight of a convolution
    ``Block((16, 1))`` has 16 filters share each position of their kernels, and ``Block((1, 1, 3, 3))`` means whole
    kernels.

    Where a size is no multiple of the block's, the last blocks along that dim are smaller. They are units like any
    other. So sparsity, which counts units, differs by a few entries from that of entries.

    The score of a block is the L2 norm of its entries, with the sign of what prevails as in `Channel`. A smaller block
    is rated as if it were whole and had the same mean square.

    Args:
        shape: Size of a block along the first dims.

    Raises:
        InvalidInputError: A size is no positive integer.

    Example:
        >>> block = Block((2, 1))
        >>> block.reduce(torch.tensor([[3.0, 0.0, 1.0], [4.0, 2.0, 0.0]]))
        tensor([5., 2., 1.])
        >>> block.expand(torch.tensor([True, False, False]), torch.Size([2, 3]))
        tensor([[ True, False, False],
                [ True, False, False]])
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the sizes, and take a list for a tuple."""
        sizes = self.shape if isinstance(self.shape, tuple | list) else ()
        if not sizes or not all(is_count(size) for size in sizes):
            raise InvalidInputError(
                "the shape of a block is a tuple of positive sizes.", shape=self.shape, fix="patterns.Block((4, 4))"
            )
        object.__setattr__(self, "shape", tuple(sizes))

    def misfit(self, shape: torch.Size) -> str:
        """That the tensor has fewer dims than the block."""
        return f"there is no dim {len(shape)}" if len(shape) < len(self.shape) else ""

    def remainder(self, shape: torch.Size) -> str:
        """Along which dims the last blocks are smaller."""
        uneven = (undivided(shape, dim, size) for dim, size in enumerate(self.shape))
        return ", ".join(why for why in uneven if why)

    def unit_size(self, shape: torch.Size) -> int:
        """Number of entries in a whole block.

        Raises:
            ShapeError: The shape has fewer dims than the block.
        """
        self.check_fits(shape)
        return prod(self.shape)

    def reduce(self, score: Tensor) -> Tensor:
        """Score each block by the signed L2 norm of its entries.

        Args:
            score: Real floating-point scores.

        Returns:
            One score a block, at least float32; smaller blocks at an edge are scaled up by the root of what they lack.

        Raises:
            ShapeError: The scores have fewer dims than the block.
        """
        self.check_fits(score.shape)
        grid, shape = self._grid(score.shape), score.shape
        score = score.detach()
        if self.remainder(shape):
            score = _padded(score, [count * size for count, size in grid])
        # every dim becomes two: which block, and where in it
        cut = score.reshape([number for pair in grid for number in pair])
        norms = signed_norm(cut, [2 * dim + 1 for dim, (_, size) in enumerate(grid) if size > 1])
        norms = norms.reshape([count for count, _ in grid])
        for dim, (count, size) in enumerate(grid):
            left = shape[dim] % size
            if left:
                norms.select(dim, count - 1).mul_((size / left) ** 0.5)
        return norms.view(-1)

    def expand(self, kept: Tensor, shape: torch.Size) -> Tensor:
        """Make the mask that keeps some blocks.

        Args:
            kept: Bool, one a block, in row-major order; True = kept.
            shape: Shape of the mask.

        Returns:
            Contiguous bool mask of this shape.

        Raises:
            ShapeError: The shape has fewer dims than the block, or `kept` has not one element a block.
        """
        self.check_fits(shape)
        grid = self._grid(shape)
        check_kept(kept, prod(count for count, _ in grid), shape)
        cut = kept.view([number for count, _ in grid for number in (count, 1)])
        whole = cut.expand([number for pair in grid for number in pair]).reshape([count * size for count, size in grid])
        return whole[tuple(slice(size) for size in shape)].contiguous()

    def _grid(self, shape: torch.Size) -> list[tuple[int, int]]:
        """Number of blocks along each dim of a tensor, and their size."""
        sizes = self.shape + (1,) * (len(shape) - len(self.shape))
        return [(-(-whole // size), size) for whole, size in zip(shape, sizes, strict=True)]


def _padded(score: Tensor, shape: list[int]) -> Tensor:
    """The scores at the start of a larger tensor of zeros."""
    larger = score.new_zeros(shape)
    larger[tuple(slice(size) for size in score.shape)] = score
    return larger
