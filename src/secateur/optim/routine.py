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


class _Place(NamedTuple):
    """A tensor beside the weights that a kernel reads, and what it was like."""

    tensor: Tensor
    pointer: int
    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """A tensor as it is now."""
        return cls(tensor, tensor.data_ptr(), tensor.shape, tensor.dtype)


class _Part(NamedTuple):
    """A parameter, with all that has to be as it was.

    Args:
        parameter: The parameter, float32 and contiguous.
        pointer: Where its weights lie.
        shape: Its shape.
        state: Its state, none for an optimizer without any.
        held: Entries of its state by name: those with one value a weight, the steps, and the mask.
        places: Those, and the mask that is not among them.
    """

    parameter: nn.Parameter
    pointer: int
    shape: torch.Size
    state: Mapping[str, Any] | None
    held: tuple[tuple[str, Tensor], ...]
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, each: Whole | Masked, state: Mapping[str, Any] | None, names: tuple[str, ...]) -> Self:
        """A parameter as it is now."""
        known = state or {}
        held = tuple((name, known[name]) for name in (*names, "step", KEPT) if isinstance(known.get(name), Tensor))
        read = [entry for _, entry in held] + ([] if each.bits is None else [each.bits])
        places = tuple(map(_Place.of, {id(tensor): tensor for tensor in read}.values()))
        return cls(each.parameter, each.parameter.data_ptr(), each.parameter.shape, state, held, places)

    def gradient(self) -> Tensor | None:
        """The gradient; none if anything is not as it was."""
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
            return None
        if self.state is not None:
            get = self.state.get
            for name, entry in self.held:
                if get(name) is not entry:
                    return None
        for tensor, pointer, size, dtype in self.places:
            if (
                tensor.data_ptr() != pointer
                or tensor.shape != size
                or tensor.dtype is not dtype
                or not tensor.is_contiguous()
            ):
                return None
        return gradient


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

    def gradients(self, optimizer: SparseOptimizer) -> list[Tensor] | None:
        """The gradients that there are, if the optimizer may step so again; the calls then point to them.

        They have to live until the step is made. That masks are the same is for the caller to see.
        """
        if len(optimizer.param_groups) != len(self._groups) or _native.library() is not self._library:
            return None
        found = []
        for group, known, ids in zip(optimizer.param_groups, self._groups, self._ids, strict=True):
            if group is not known.group or optimizer.entries(group) != known.names:
                return None
            if len(group["params"]) != len(ids) or set(map(id, group["params"])) != ids:
                return None
            for index, part in enumerate(known.parts):
                gradient = part.gradient()
                if gradient is None or optimizer.state.get(part.parameter) is not part.state:
                    return None
                pointer = gradient.data_ptr()
                if not pointer:
                    return None
                known.batch.point_to(index, pointer)
                found.append(gradient)
        return found

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Batch]]:
        """Groups and their calls."""
        return ((each.group, each.batch) for each in self._groups)
