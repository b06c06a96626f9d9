"""The way back from a compressed model: ordinary layers of torch, for what has no packed ones (ONNX, other devices)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from secateur._names import owner_of, put_module
from secateur.graph.heads import FreeHeadsAttention, bind_heads_
from secateur.runtime.attention import OpenAttention
from secateur.runtime.chain import Chain
from secateur.runtime.compressed import Compressed
from secateur.runtime.layers import SparseConv2d, SparseLayer, SparseLinear

__all__ = ["dense_model"]


@torch.inference_mode(mode=False)
def dense_model(fast: Compressed) -> nn.Module:
    """Make a plain model of a compressed one; see `Compressed.to_dense`."""
    sparse = [module for module in fast.model.modules() if isinstance(module, SparseLayer)]
    memo: dict[int, object] = {id(layer): _unpacked(layer) for layer in sparse}
    model = copy.deepcopy(fast.model, memo)
    for path in fast.recipe.layers.keys() - fast.recipe.packed.keys():
        model.get_submodule(path).to(memory_format=torch.contiguous_format)
    for relu in fast.recipe.activations.values():
        put_module(model, relu, nn.ReLU())
    for module in model.modules():
        if isinstance(module, Chain):
            module.__class__ = nn.Sequential  # type: ignore[assignment]
    for path, module in list(model.named_modules()):
        if isinstance(module, OpenAttention):
            _close_(module, {name.removeprefix(f"{path}." if path else "") for name in fast.origin.names})
    for name, twin in fast.origin.header["aliases"].items():
        _tie_(model, name, twin)
    return model.eval()


def _unpacked(layer: SparseLayer) -> nn.Module:
    """A layer of torch, or of transformers, with the same values."""
    weight, bias = layer.weight.contiguous(), layer.bias
    with torch.device("meta"):
        plain = _blank(layer, has_bias=bias is not None)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return plain


def _blank(layer: SparseLayer, *, has_bias: bool) -> nn.Module:
    """The kind of layer that a packed one was, in its sizes."""
    if isinstance(layer, SparseConv2d):
        outputs, inputs, height, width = layer.shape
        return nn.Conv2d(inputs, outputs, (height, width), *layer.geometry, bias=has_bias)
    assert isinstance(layer, SparseLinear)
    if layer.transposed:
        from transformers.pytorch_utils import Conv1D

        found: nn.Module = Conv1D(layer.out_features, layer.in_features)
        return found
    return nn.Linear(layer.in_features, layer.out_features, bias=has_bias)


def _close_(module: OpenAttention, names: set[str]) -> None:
    """Turn an attention back into nn.MultiheadAttention, or into one with free heads where some have gone.

    Args:
        module: The attention, whose projections are layers of torch.
        names: Those that its tensors had, and others.
    """
    leaves = [leaf for leaf in module._parameters if leaf in names]
    values = {leaf: module.tensor_of_closed(leaf) for leaf in leaves}
    for leaf, value in values.items():
        module._parameters[leaf] = None if value is None else nn.Parameter(value.detach(), requires_grad=False)
    for name in ("in_proj", "q_proj", "k_proj", "v_proj"):
        module._modules.pop(name, None)
    module.out_proj.__class__ = nn.modules.linear.NonDynamicallyQuantizableLinear
    module.__class__ = FreeHeadsAttention  # type: ignore[assignment]
    if module.num_heads * module.head_dim == module.embed_dim and module.scale == float(module.head_dim) ** -0.5:
        bind_heads_(module, same_embed_dim=module.in_proj_weight is not None)


def _tie_(model: nn.Module, name: str, twin: str) -> None:
    """Have two parameters of one name each be one again, if they have the same values."""
    (owner, leaf), (other, own) = owner_of(model, name), owner_of(model, twin)
    one, another = owner._parameters.get(leaf), other._parameters.get(own)
    if one is not another and isinstance(one, Tensor) and isinstance(another, Tensor) and torch.equal(one, another):
        owner._parameters[leaf] = another
