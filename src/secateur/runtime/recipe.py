"""What turns a plain model into a compressed one, as a value: the same steps when it is made and when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._names import put_module
from secateur.runtime.attention import OpenAttention, open_attention_
from secateur.runtime.chain import Chain
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, Geometry
from secateur.runtime.layers import SparseConv2d, SparseLayer, SparseLinear

__all__ = [
    "CHANNELS_LAST",
    "Recipe",
    "geometry_of",
    "held",
    "inside",
    "is_transposed",
    "layer_weight",
    "open_",
    "pack_",
    "packed_layer",
]


CHANNELS_LAST = "channels last"
"""In the place of a format: a dense convolution whose weight, and so whose output, has the channels last in memory."""


@dataclass(frozen=True)
class Recipe:
    """Which parts of a model become what. Paths are those of the model inside.

    Args:
        norms: Layer -> the BatchNorm that is folded into it.
        attentions: Attention whose projections become layers of their own -> whether those of query, key and value are
            one layer.
        layers: Layer -> name of the format of its weight, or `CHANNELS_LAST`.
        activations: Layer -> the ReLU after it that it computes itself.
        values: Name of the dtype of the values.
    """

    norms: Mapping[str, str] = field(default_factory=dict)
    attentions: Mapping[str, bool] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    values: str = "float32"

    @property
    def packed(self) -> dict[str, str]:
        """Those of `layers` that are packed."""
        return {path: name for path, name in self.layers.items() if name != CHANNELS_LAST}

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and strings."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Undo `to_json`.

        Raises:
            InvalidInputError: It is none of its results.
        """
        made = cls(**found)
        kinds = {"norms": str, "attentions": bool, "layers": str, "activations": str}
        if made.values not in ("float32", "bfloat16") or not all(
            isinstance(each, kind) for name, kind in kinds.items() for each in getattr(made, name).values()
        ):
            raise InvalidInputError("the recipe of a compressed model is damaged.", recipe=str(found)[:80])
        return made


def held(model: nn.Module) -> nn.Module:
    """A module that holds a model, so that the model itself can be put in another's place, too."""
    holder = nn.Module()
    holder.model = model
    return holder.eval()


def inside(holder: nn.Module) -> nn.Module:
    """The model that a holder holds."""
    return holder.get_submodule("model")


def open_(holder: nn.Module, recipe: Recipe) -> None:
    """Open the attentions of a recipe."""
    for path, joint in recipe.attentions.items():
        open_attention_(inside(holder).get_submodule(path), joint=joint)  # type: ignore[arg-type]
    _unfuse_(holder)


def pack_(holder: nn.Module, recipe: Recipe) -> None:
    """Put the layers of a recipe in place of those of a model whose norms are folded and whose attentions are open."""
    values: torch.dtype = getattr(torch, recipe.values)
    for path in recipe.layers.keys() - recipe.packed.keys():
        inside(holder).get_submodule(path).to(memory_format=torch.channels_last)
    for path, name in recipe.packed.items():
        layer = inside(holder).get_submodule(path)
        packed = packed_layer(layer, name, values, relu=path in recipe.activations)
        put_module(holder, f"model.{path}" if path else "model", packed)
    for path in (recipe.activations[layer] for layer in recipe.packed if layer in recipe.activations):
        put_module(inside(holder), path, nn.Identity().eval())
    for module in list(holder.modules()):
        if type(module) is nn.Sequential and any(isinstance(part, SparseLinear) for part in module):
            module.__class__ = Chain
    _unfuse_(holder)


def _unfuse_(model: nn.Module) -> None:
    """Keep encoders and their layers from torch's fused path, which reads weights past their modules."""
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            continue
        if any(isinstance(part, SparseLayer | OpenAttention) for part in module.modules()):
            flag = "use_nested_tensor" if isinstance(module, nn.TransformerEncoder) else "activation_relu_or_gelu"
            setattr(module, flag, 0)


def packed_layer(layer: nn.Module, name: str, values: torch.dtype, *, relu: bool) -> SparseLayer:
    """A layer with its weight in a format."""
    weight = layer_weight(layer)
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    bias = None if bias is None else bias.detach().float().clone()
    dtype = layer.get_parameter("weight").dtype
    if weight.dim() == 2:
        parts = LINEAR_FORMATS[name].pack(weight, values)
        flipped = is_transposed(layer)
        return SparseLinear(name, parts, weight.shape, bias, relu=relu, dtype=dtype, transposed=flipped)
    parts = CONV_FORMATS[name].pack(weight, values)
    geometry = geometry_of(layer)
    return SparseConv2d(name, parts, weight.shape, bias, relu=relu, dtype=dtype, geometry=geometry)


def layer_weight(layer: nn.Module) -> Tensor:
    """The weight of a layer as formats take it: float32, outputs first, contiguous."""
    weight = layer.get_parameter("weight").detach()
    if is_transposed(layer):
        weight = weight.t()
    return weight.float().contiguous()


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is the linear layer of transformers whose weight has the inputs first."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def geometry_of(layer: nn.Module) -> Geometry:
    """How a convolution moves, with its padding in numbers."""
    assert isinstance(layer, nn.Conv2d)
    padding = layer.padding
    if isinstance(padding, str):
        sides = zip(layer.dilation, layer.kernel_size, strict=True)
        padding = tuple(0 if padding == "valid" else step * (window - 1) // 2 for step, window in sides)
    return Geometry(*(_pair(each) for each in (layer.stride, padding, layer.dilation)))


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    """Two numbers."""
    return values[0], values[1]
