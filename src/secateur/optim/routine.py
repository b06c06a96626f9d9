"""A step that is made again as it was made before, while nothing but the gradients has changed.

A step looks at each parameter, its mask, its gradient and its state several times. Python comes to that with cold
caches, after a backward pass, so for a model of a few million weights it takes longer than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from secateur import _native
from secateur._native.stepping import Batch
from secateur.optim.members import KEPT, Masked, Members, Whole

if TYPE_CHECKING:
    from secateur.optim.optimizer import SparseOptimizer

__all__ = ["Routine"]


class _Part(NamedTuple):
    """A parameter, with all that has to be as it was.

    Args:
        parameter: The parameter, float32 and contiguous.
        pointer: Where its weights lie.
        shape: Its shape.
        state: Its state, none for an optimizer without any.
        held: Entries of its state by name: those with one value a weight, the steps, and the mask.
        places: Where those lie that a kernel reads, and how many values they have.
    """

    parameter: nn.Parameter
    pointer: int
    shape: torch.Size
    state: Mapping[str, Any] | None
    held: tuple[tuple[str, Tensor], ...]
    places: tuple[tuple[Tensor, int, int], ...]

    @classmethod
    def of(cls, each: Whole | Masked, state: Mapping[str, Any] | None, names: tuple[str, ...]) -> Self:
        """A parameter as it is now."""
        parameter, known = each.parameter, state or {}
        held = tuple((name, known[name]) for name in (*names, "step", KEPT) if name in known)
        places = tuple((entry, entry.data_ptr(), entry.numel()) for name, entry in held if name != KEPT)
        return cls(parameter, parameter.data_ptr(), parameter.shape, state, held, places)

    def gradient(self) -> int:
        """Where the gradient lies now; 0 if anything is not as it was."""
        parameter, gradient, shape = self.parameter, self.parameter.grad, self.shape
        if (
            gradient is None
            or (type(gradient) is not Tensor and type(gradient) is not nn.Parameter)
            or gradient.layout is not torch.strided
            or gradient.dtype is not torch.float32
            or not gradient.is_cpu
            or gradient.shape != shape
            or not gradient.is_contiguous()
            or parameter.data_ptr() != self.pointer
            or parameter.dtype is not torch.float32
            or parameter.shape != shape
            or not parameter.is_contiguous()
        ):
            return 0
        if self.state is not None:
            get = self.state.get
            for name, entry in self.held:
                if get(name) is not entry:
                    return 0
        for entry, pointer, count in self.places:
            if entry.data_ptr() != pointer or entry.numel() != count or entry.dtype is not torch.float32:
                return 0
        return gradient.data_ptr()


class _Group(NamedTuple):
    """A group of parameters.

    Args:
        group: The group.
        names: Entries of the state that its options ask for.
        parts: Its parameters in the order of the call.
        batch: The call.
    """

    group: dict[str, Any]
    names: tuple[str, ...]
    parts: tuple[_Part, ...]
    batch: Batch


class Routine:
    """A step in which every parameter of an optimizer had a gradient and went to a kernel."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self._groups = groups
        self._ids = [{id(part.parameter) for part in each.parts} for each in groups]
        self._library = _native.library()

    @classmethod
    def of(
        cls, optimizer: SparseOptimizer, members: Sequence[Members], batches: Sequence[Batch | None]
    ) -> Routine | None:
        """The step that has just been made; none if a part of it went elsewhere."""
        groups = []
        for group, each, batch in zip(optimizer.param_groups, members, batches, strict=True):
            together: list[Whole | Masked] = [*each.masked, *each.whole]
            names = optimizer.entries(group)
            states = [optimizer.state.get(one.parameter) for one in together]
            if batch is None or batch.begins or len(together) != len(group["params"]):
                return None
            parts = tuple(_Part.of(one, state, names) for one, state in zip(together, states, strict=True))
            groups.append(_Group(group, names, parts, batch))
        return cls(groups)

    def fits(self, optimizer: SparseOptimizer) -> bool:
        """Whether the optimizer may step so again, with the gradients that there are; the calls then point to them.

        That masks are the same is for the caller to see.
        """
        if len(optimizer.param_groups) != len(self._groups) or _native.library() is not self._library:
            return False
        state = optimizer.state
        for group, known, ids in zip(optimizer.param_groups, self._groups, self._ids, strict=True):
            parameters = group["params"]
            if group is not known.group or optimizer.entries(group) != known.names or len(parameters) != len(ids):
                return False
            if not ids.issuperset(map(id, parameters)):
                return False
            for index, part in enumerate(known.parts):
                pointer = part.gradient()
                if not pointer or state.get(part.parameter) is not part.state:
                    return False
                known.batch.point_to(index, pointer)
        return True

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Batch]]:
        """Groups and their calls."""
        return ((each.group, each.batch) for each in self._groups)
