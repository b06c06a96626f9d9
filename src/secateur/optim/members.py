"""Parameters that are about to be stepped: as a whole, or what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from secateur._native.stepping import Job
from secateur.masks.mask import Mask
from secateur.masks.packing import count_kept
from secateur.optim.places import place_, take

__all__ = ["KEPT", "Kept", "Masked", "Members", "Whole", "can_fuse"]

KEPT = "kept"
"""Entry of a parameter's state with the mask that the others belong to."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a parameter.

    Args:
        mask: Its mask.
        bits: The same, packed row by row.
        num_kept: Ones of it.
    """

    mask: Mask
    bits: Tensor
    num_kept: int

    @classmethod
    def of(cls, mask: Mask) -> Self:
        """What a mask keeps at the moment."""
        bits = mask.bits.packed
        return cls(mask, bits, count_kept(bits))


class Whole(NamedTuple):
    """A parameter of which every weight is stepped."""

    parameter: nn.Parameter
    gradient: Tensor

    @property
    def bits(self) -> None:
        """There is no mask."""

    def job(self, states: tuple[Tensor, ...], steps: Tensor | None = None, *, begins: bool = False) -> Job:
        """What the kernels take."""
        return Job(self.parameter, self.gradient, None, states, self.parameter.numel(), steps, begins)

    def take(self, tensor: Tensor) -> Tensor:
        """What is stepped of the parameter, or belongs to it in its gradient: the tensor itself."""
        return tensor

    def put_(self, stepped: Tensor) -> None:
        """Take in what was stepped: it is the parameter itself."""

    def shape(self) -> torch.Size:
        """Of an entry of the state."""
        return self.parameter.shape

    def empty(self) -> Tensor:
        """Memory for an entry of the state."""
        return torch.empty_like(self.parameter, requires_grad=False)

    def begin(self, entries: dict[str, Tensor]) -> dict[str, Any]:
        """State with these entries."""
        return entries


class Masked(NamedTuple):
    """A parameter of which kept weights are stepped."""

    parameter: nn.Parameter
    gradient: Tensor
    kept: Kept

    @property
    def bits(self) -> Tensor:
        """The mask."""
        return self.kept.bits

    def job(self, states: tuple[Tensor, ...], steps: Tensor | None = None, *, begins: bool = False) -> Job:
        """What the kernels take."""
        return Job(self.parameter, self.gradient, self.kept.bits, states, self.kept.num_kept, steps, begins)

    def take(self, tensor: Tensor) -> Tensor:
        """What is stepped of the parameter, or belongs to it in its gradient: a copy."""
        return take(tensor, self.kept.bits)

    def put_(self, stepped: Tensor) -> None:
        """Write what was stepped to the parameter, and 0 to masked places."""
        place_(self.parameter, stepped, self.kept.bits)

    def shape(self) -> torch.Size:
        """Of an entry of the state."""
        return torch.Size((self.kept.num_kept,))

    def empty(self) -> Tensor:
        """Memory for an entry of the state."""
        return self.parameter.new_empty(self.kept.num_kept, requires_grad=False)

    def begin(self, entries: dict[str, Tensor]) -> dict[str, Any]:
        """State with these entries, which tells what mask they belong to."""
        return {**entries, KEPT: self.kept.bits}


@dataclass
class Members:
    """Parameters of a group.

    Args:
        whole: Those that have a gradient and no mask.
        masked: Those that have a gradient and a mask.
        idle: Masks of those that have no gradient.
    """

    whole: list[Whole] = field(default_factory=list)
    masked: list[Masked] = field(default_factory=list)
    idle: list[Mask] = field(default_factory=list)


def can_fuse(weights: Sequence[Tensor], *others: Sequence[Tensor | None]) -> bool:
    """Whether torch's fused kernels take tensors while steps are counted on the CPU.

    Args:
        weights: What is stepped. The kernels take the memory of a tensor for one dense block.
        *others: Gradients and state of each, as far as there is some: the kernels take their layouts for the weight's.
    """
    return all(
        weight.is_cpu
        and weight.is_floating_point()
        and torch.ops.aten.is_non_overlapping_and_dense(weight)
        and all(other is None or other.stride() == weight.stride() for other in with_it)
        for weight, *with_it in zip(weights, *others, strict=True)
    )
