"""What a file holds of a model: tensors, their shapes, recorded numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor, nn

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._wrappers import refuse_model
from secateur.graph.heads import FreeHeadsAttention
from secateur.graph.provenance import old_size, stored_sizes
from secateur.shrink.values import refuse_valueless

__all__ = ["Content", "Numbers", "content_of"]

_UNSAVED = "buffer|"
_MOST = 1 << 31
_MOST_IN_HEADER = 1 << 24

Numbers = list[tuple[str, str, int | None, int, int]]
"""Integers that modules record: path, attribute, position in it, the number now and before all cuts."""


@dataclass
class Content:
    """What a file of a model holds.

    Args:
        tensors: Its state, tied tensors under each of their names.
        buffers: Those that are in no state.
        numbers: Integers that modules record.
        scales: Attention with free heads -> factor of its scores.
        aliases: Name in the state -> the name of the same tensor under which it is written.
    """

    tensors: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=list)
    scales: dict[str, float] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """All but the tensors, for a file."""
        return {"aliases": self.aliases, "numbers": self.numbers, "scales": self.scales}

    @property
    def has_large_buffers(self) -> bool:
        """Whether buffers that are in no state are more than the header of a file should hold."""
        return sum(buffer.nbytes for buffer in self.buffers.values()) > _MOST_IN_HEADER

    def own(self) -> dict[str, Tensor]:
        """The tensors of the state, each once."""
        return {name: tensor for name, tensor in self.tensors.items() if name not in self.aliases}

    def written(self) -> dict[str, Tensor]:
        """The tensors for a file, each once, with the buffers that are in no state."""
        return self.own() | {_UNSAVED + name: buffer for name, buffer in self.buffers.items()}

    def fill_(self, model: nn.Module) -> None:
        """Load the values into a model of these shapes."""
        model.load_state_dict(self.tensors)
        for name, buffer in model.named_buffers():
            if name in self.buffers:
                buffer.copy_(self.buffers[name])

    @classmethod
    def read(cls, header: Mapping[str, Any], written: Mapping[str, Tensor]) -> Self:
        """Undo `header` and `written`.

        Raises:
            InvalidInputError: The header is none of `header`.
        """
        tensors = dict(written)
        tensors.update({name: tensors[twin] for name, twin in header["aliases"].items()})
        buffers = {name.removeprefix(_UNSAVED): t for name, t in tensors.items() if name.startswith(_UNSAVED)}
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_UNSAVED)}
        numbers = [tuple(entry) for entry in header["numbers"]]
        scales: dict[str, float] = header["scales"]
        if not all(map(_is_number, numbers)) or not all(isinstance(scale, float) for scale in scales.values()):
            raise InvalidInputError("the sizes that a file records are damaged.")
        return cls(tensors, buffers, numbers, scales, header["aliases"])


def _is_number(entry: tuple[Any, ...]) -> bool:
    """Whether an entry is a place and two sizes."""
    label, name, index, *sizes = entry
    return (
        isinstance(label, str)
        and isinstance(name, str)
        and (index is None or isinstance(index, int))
        and len(sizes) == 2
        and all(isinstance(size, int) and 1 <= size < _MOST for size in sizes)
    )


def content_of(model: nn.Module) -> Content:
    """What a file has to hold of a model, with memory of its own.

    Raises:
        InvalidInputError, UnsupportedError: Those of `save`.
    """
    refuse_model(model)
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UnsupportedError(f"cannot save {name!r}: it is no tensor.", kind=type(value).__name__)
        if nn.parameter.is_lazy(value):
            raise UnsupportedError(f"cannot save {name!r}: it is lazy and has no shape yet.", fix="run the model once")
        refuse_valueless([value], "a file")
        seen = value.dtype, value.is_conj(), value.is_neg()  # the same memory can be read in several ways
        twin = first.setdefault((value.data_ptr() or id(value), value.shape, value.stride(), seen), name)
        if twin != name:
            aliases[name] = twin
        tensors[name] = tensors[twin] if twin != name else value.detach().clone()
    # those that no state dict holds are computed anew, at their old size
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers() if name not in tensors}
    numbers = [(a.label, a.name, a.index, int(value), int(old_size(value))) for a, value in stored_sizes(model)]
    scales = {n: m.scale for n, m in model.named_modules() if isinstance(m, FreeHeadsAttention)}
    return Content(tensors, buffers, numbers, scales, aliases)
