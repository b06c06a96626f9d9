"""What a model holds: parameters, those that are not zero, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from secateur import _compat
from secateur.graph.memory import storage_of

__all__ = [
    "PackedWeight",
    "SelfCounting",
    "Sizes",
    "bytes_in",
    "nonzeros_of",
    "packed",
    "self_counting",
    "sizes_of",
]


class SelfCounting(Protocol):
    """A module that says itself what it stands for, all that is inside included, as its tensors are packed."""

    def profile_counts(self) -> tuple[int, int]:
        """Number of parameters of the layer that it replaces, and of those that are not zero."""


class PackedWeight(SelfCounting, Protocol):
    """A module that multiplies by one packed weight, out of sight of torch's dispatcher.

    Attributes:
        shape: Shape of the weight that it stands for, outputs first.
        num_nonzero: How many of its entries are not zero.
    """

    shape: torch.Size
    num_nonzero: int


class Sizes(NamedTuple):
    """What a model holds.

    Args:
        parameters: Number of parameters, tied ones once.
        nonzeros: How many of them are not zero; None for a model without values.
        bytes: Memory of its parameters and buffers, each storage once and whole, and of copies that layers run on.
    """

    parameters: int
    nonzeros: int | None
    bytes: int


def sizes_of(model: nn.Module) -> Sizes:
    """Count what a model holds."""
    counting = self_counting(model)
    inside = {id(tensor) for module in counting for tensor in module.parameters()}
    parameters = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    counted = [module.profile_counts() for module in counting]  # type: ignore[operator]
    number = sum(parameter.numel() for parameter in parameters) + sum(own for own, _ in counted)
    nonzeros = _sum([*map(nonzeros_of, parameters), *(own for _, own in counted)])
    return Sizes(number, nonzeros, bytes_in(model))


def self_counting(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that are `SelfCounting`; a wrapper that passes attributes on is not one by that."""
    if hasattr(type(model), "profile_counts"):
        return [model]
    return list(dict.fromkeys(module for child in model.children() for module in self_counting(child)))


def packed(model: nn.Module) -> list[nn.Module]:
    """The modules that are a `PackedWeight`."""
    return [module for module in self_counting(model) if hasattr(module, "shape") and hasattr(module, "num_nonzero")]


def nonzeros_of(tensor: Tensor) -> int | None:
    """Number of entries that are not zero; None where that is not known."""
    is_opaque = _compat.has_inner_tensors(tensor) or tensor.is_quantized or tensor.is_mkldnn
    if is_opaque or _compat.is_fake(tensor):
        return None
    values = tensor.detach() if tensor.layout == torch.strided else _parts(tensor)[-1]
    is_tiny = values.is_floating_point() and values.element_size() == 1  # torch does not count in such dtypes
    return int((values.half() if is_tiny else values).count_nonzero())


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum, None if one is not known."""
    found = 0
    for number in numbers:
        if number is None:
            return None
        found += number
    return found


def bytes_in(model: nn.Module) -> int:
    """Memory of parameters and buffers, what is shared once, and of copies that packed layers run on."""
    storages: dict[int, int] = {}
    for part in _strided((*model.parameters(), *model.buffers())):
        storages[storage_of(part)] = part.untyped_storage().nbytes()
    copying: list[Any] = [module for module in model.modules() if hasattr(type(module), "copied_bytes")]
    return sum(storages.values()) + sum(int(module.copied_bytes) for module in copying)


def _strided(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Tensors that own memory: those of a sparse tensor, or inside a wrapper, instead of itself."""
    for tensor in tensors:
        if _compat.has_inner_tensors(tensor):
            names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
            yield from _strided(getattr(tensor, name) for name in names)
        elif tensor.layout == torch.strided:
            yield tensor
        elif not tensor.is_mkldnn:
            yield from _parts(tensor)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors that a sparse tensor consists of, its values last."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
