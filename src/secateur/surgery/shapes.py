"""What becomes of the tensors of one module, by the names that the module knows them under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from secateur.surgery.change import Change
from secateur.surgery.computed import computed_tensors
from secateur.surgery.places import own_tensors
from secateur.surgery.selection import Selection

__all__ = ["Shapes"]


class Shapes(Mapping[str, torch.Size]):
    """Shapes of a module's tensors after the change, by name; read-only.

    The names are those of the module's own parameters, buffers and computed weights ("weight"), and of those of its
    direct children ("out_proj.weight").

    Args:
        module: The module.
        changes: All changes of its model, by the tensor's id.
    """

    def __init__(self, module: nn.Module, changes: Mapping[int, Change]) -> None:
        self._tensors = dict(_own_and_computed(module))
        for prefix, child in module.named_children():
            self._tensors.update((f"{prefix}.{leaf}", tensor) for leaf, tensor in _own_and_computed(child))
        self._changes = {name: changes[id(t)] for name, t in self._tensors.items() if id(t) in changes}

    def __getitem__(self, name: str) -> torch.Size:
        """Shape of one tensor after the change."""
        change = self._changes.get(name)
        return self._tensors[name].shape if change is None else change.new_shape

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._tensors)

    @property
    def is_changed(self) -> bool:
        """Whether any of the tensors changes."""
        return bool(self._changes)

    def kept(self, name: str, dim: int) -> Selection | None:
        """What happens to one dim of a tensor; None if nothing does, or there is no such tensor."""
        change = self._changes.get(name)
        return change.along(dim) if change else None

    def positions(self, name: str, dim: int) -> Tensor:
        """Where the positions after come from: old ones, and new ones numbered from the old size on."""
        selection = self.kept(name, dim)
        return torch.arange(self[name][dim], device="cpu") if selection is None else selection.positions

    def size(self, name: str, dim: int = 0) -> int | None:
        """Size of one tensor along `dim`, None if there is no such tensor."""
        return self[name][dim] if name in self else None


def _own_and_computed(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A module's parameters and buffers, and its computed weights as tensors of the same shape."""
    yield from own_tensors(module)
    yield from computed_tensors(module)
