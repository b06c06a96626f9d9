"""Where tensors are registered in a model, and which tensor a dotted name leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._names import owner_of
from secateur._wrappers import unwrapped

__all__ = ["Place", "find_place", "missing", "own_tensors", "places", "sharers"]


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor is registered: the module that owns it, the module's dotted name, the tensor's short name."""

    module: nn.Module
    prefix: str
    leaf: str

    @property
    def name(self) -> str:
        """The tensor's dotted name."""
        return f"{self.prefix}.{self.leaf}" if self.prefix else self.leaf

    @property
    def tensor(self) -> Tensor:
        """The tensor itself."""
        for registered in (self.module._parameters, self.module._buffers):
            found = registered.get(self.leaf)
            if found is not None:
                return found
        raise missing(self)


def find_place(model: nn.Module, name: str) -> Place:
    """Where a dotted name leads, whether or not there is a tensor.

    Raises:
        InvalidInputError: The name is no string, or `model` has no such submodule.
    """
    if not isinstance(name, str):
        raise InvalidInputError("a parameter is named by a string.", name=repr(name)[:80], fix='"fc.weight"')
    module, leaf = owner_of(model, name)
    return Place(unwrapped(module), name.rpartition(".")[0], leaf)


def missing(place: Place) -> InvalidInputError:
    """The error for a name under which there is no tensor."""
    child = place.module._modules.get(place.leaf)
    if child is not None:
        inside = [f"{place.name}.{name}" for name, _ in child.named_parameters()]
        return InvalidInputError(
            f"{place.name!r} is a module, not a parameter or buffer.", inside=", ".join(inside[:6]) or "no parameters"
        )
    names = [*place.module._parameters, *place.module._buffers]
    return InvalidInputError(
        f"{type(place.module).__name__} has no parameter or buffer {place.name!r}.", has=", ".join(names) or "none"
    )


def places(model: nn.Module) -> dict[int, list[Place]]:
    """All places of every parameter and buffer of a model, by the tensor's id; more than one where it is tied."""
    found: dict[int, list[Place]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for leaf, tensor in own_tensors(module):
            found.setdefault(id(tensor), []).append(Place(module, prefix, leaf))
    return found


def sharers(registered: Mapping[int, list[Place]]) -> dict[int, list[Place]]:
    """For each tensor, by its id, first places of all tensors in the same memory; more than one for views of one."""
    by_address: dict[int, list[Place]] = {}
    for first, *_ in registered.values():
        by_address.setdefault(_address(first.tensor) or -id(first), []).append(first)
    return {id(first.tensor): among for among in by_address.values() for first in among}


def _address(tensor: Tensor) -> int:
    """Where a tensor's memory begins, 0 if it has none that could be shared."""
    if tensor.is_meta or tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that the module itself owns, by short name."""
    for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield leaf, tensor
