"""What a compressed model was before its layers were packed: names, recorded sizes, and the values that left it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from secateur._names import owner_of
from secateur.runtime.attention import OpenAttention
from secateur.runtime.describing import description
from secateur.runtime.layers import SparseLayer
from secateur.shrink.saving import Content, content_of

__all__ = ["Origin", "contents", "kinds_of"]


@dataclass
class Origin:
    """What `contents` needs to put the file of a compressed model together.

    Args:
        names: Of the tensors in the state of the plain model.
        buffers: Those of buffers that are in no state.
        header: Tied names and recorded sizes, as `secateur.shrink.saving.Content` keeps them.
        left: Tensors of the norms that were folded.
        kinds: Path -> class of each module.
        structure: A description of the model, if it is of torch's own layers alone.
    """

    names: list[str]
    buffers: list[str]
    header: dict[str, Any]
    left: dict[str, Tensor] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    structure: dict[str, Any] | None = None

    @classmethod
    def of(cls, model: nn.Module, norms: Mapping[str, str]) -> Origin:
        """The origin of a plain model, some of whose norms will be folded.

        Raises:
            UnsupportedError: The model's state holds something else than tensors.
        """
        content = content_of(model)
        folded = tuple(f"{path}." for path in norms.values())
        left = {name: tensor for name, tensor in content.tensors.items() if name.startswith(folded)}
        header, structure = content.header(), description(model)
        return cls(list(content.tensors), list(content.buffers), header, left, kinds_of(model), structure)


def kinds_of(model: nn.Module) -> dict[str, str]:
    """Path -> class of each module; an attention whose heads have been freed counts as what it was."""
    return {
        path: "MultiheadAttention" if isinstance(module, nn.MultiheadAttention) else type(module).__name__
        for path, module in model.named_modules(remove_duplicate=False)
    }


def contents(model: nn.Module, origin: Origin, norms: Mapping[str, str]) -> tuple[Content, dict[str, Tensor]]:
    """The tensors of a compressed model under the names of the plain one, and the biases that folding has added."""
    aliases = origin.header["aliases"]
    own = {name: origin.left.get(name) for name in origin.names if name not in aliases}
    found = {name: tensor_at(model, name) if tensor is None else tensor for name, tensor in own.items()}
    for name, twin in aliases.items():  # if one of them is packed, the other has the values before they were rounded
        if _is_packed(model, twin) and not _is_packed(model, name):
            found[twin] = tensor_at(model, name)
    found.update({name: found[twin] for name, twin in aliases.items()})
    buffers = {name: tensor_at(model, name) for name in origin.buffers}
    header = {key: origin.header[key] for key in ("numbers", "scales", "aliases")}
    biases = {f"{path}.bias" if path else "bias" for path in norms} - set(origin.names)
    return Content(found, buffers, **header), {name: tensor_at(model, name) for name in sorted(biases)}


def _is_packed(model: nn.Module, name: str) -> bool:
    """Whether the layer that has a tensor is packed."""
    return isinstance(owner_of(model, name)[0], SparseLayer)


def tensor_at(model: nn.Module, name: str) -> Tensor:
    """A tensor of the plain model by its name, from the compressed one."""
    owner, leaf = owner_of(model, name)
    if isinstance(owner, OpenAttention):
        closed = owner.tensor_of_closed(leaf)
        if closed is not None:
            return closed.detach()
    tensor: Tensor = getattr(owner, leaf)
    return tensor.detach()
