"""Sizes that torch.nn modules record (``in_features``, ``groups``, …), computed from the shapes of their tensors.

One row a module class. A rule sees the shapes after the change and returns the attributes that they determine, None
where the tensors do not agree yet: a weight that was cut before its bias leaves ``out_features`` alone until the bias
has followed. Where disagreement would not raise in the next forward but read past the end of a buffer (recurrent
layers) or regroup channels, the rule refuses instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from secateur._errors import ShapeError

__all__ = ["SIZES", "SizeRule", "recorded_sizes", "size_rule"]

Shapes = Mapping[str, torch.Size]
"""Shapes of a module's own and its direct children's parameters and buffers after the change, by name."""

SizeRule = Callable[[Any, Shapes], dict[str, object]]
"""(module, shapes after) -> {attribute: value}; a value of None means: not determined, leave it."""

SIZES: dict[type[nn.Module], SizeRule] = {}


def size_rule(*kinds: type[nn.Module]) -> Callable[[SizeRule], SizeRule]:
    """Register which attributes the shapes of a module's tensors determine.

    Args:
        *kinds: Module classes; subclasses are covered unless they are registered themselves.

    Returns:
        The decorator for a function of the module and the shapes.
    """

    def register(rule: SizeRule) -> SizeRule:
        SIZES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def recorded_sizes(module: nn.Module, shapes: Shapes) -> dict[str, object]:
    """The attributes of `module` that must change for these shapes, with their new values.

    Args:
        module: Any module; classes without a row record nothing.
        shapes: Shapes of its own and its children's tensors after the change.

    Raises:
        ShapeError: The shapes contradict each other in a way that the module's forward would not notice.
    """
    for kind in type(module).__mro__:
        if kind in SIZES:
            found = SIZES[kind](module, shapes)
            return {k: v for k, v in found.items() if v is not None and v != getattr(module, k, v)}
    return {}


def _agreed(*sizes: int | None) -> int | None:
    """The size that all given ones have in common, None if they differ; those that are None do not count."""
    given = {size for size in sizes if size is not None}
    return given.pop() if len(given) == 1 else None


def _size(shapes: Shapes, name: str, dim: int = 0) -> int | None:
    """Size of one tensor along `dim`, None if there is no such tensor."""
    return shapes[name][dim] if name in shapes else None


@size_rule(nn.Linear)
def _linear(module: nn.Linear, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in), bias (out)."""
    return {
        "in_features": _size(shapes, "weight", 1),
        "out_features": _agreed(_size(shapes, "weight"), _size(shapes, "bias")),
    }


@size_rule(nn.Bilinear)
def _bilinear(module: nn.Bilinear, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in1, in2), bias (out)."""
    return {
        "in1_features": _size(shapes, "weight", 1),
        "in2_features": _size(shapes, "weight", 2),
        "out_features": _agreed(_size(shapes, "weight"), _size(shapes, "bias")),
    }


@size_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: nn.Conv2d, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in / groups, …), bias (out). A depthwise layer has one group a channel and stays depthwise."""
    out, width = shapes["weight"][:2]
    multiplier, rest = divmod(module.out_channels, module.groups)
    depthwise = width == 1 and module.groups == module.in_channels > 1 and rest == 0
    groups = out // multiplier if depthwise and out % multiplier == 0 else module.groups
    if out % groups:
        raise ShapeError(
            "every group of a convolution must keep the same number of output channels.",
            out_channels=out,
            groups=module.groups,
            fix=f"keep a multiple of {multiplier if depthwise else module.groups} channels, equally many of each group",
        )
    return {
        "out_channels": _agreed(out, _size(shapes, "bias")),
        "in_channels": width * groups,
        "groups": groups,
    }


@size_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose(module: nn.ConvTranspose2d, shapes: Shapes) -> dict[str, object]:
    """Weight (in, out / groups, …), bias (out)."""
    inputs, width = shapes["weight"][:2]
    if inputs % module.groups:
        raise ShapeError(
            "every group of a convolution must keep the same number of input channels.",
            in_channels=inputs,
            groups=module.groups,
        )
    return {"in_channels": inputs, "out_channels": _agreed(width * module.groups, _size(shapes, "bias"))}


@size_rule(nn.modules.batchnorm._NormBase)
def _batch_norm(module: nn.BatchNorm2d, shapes: Shapes) -> dict[str, object]:
    """Weight, bias, running mean and variance, all (features)."""
    names = ("weight", "bias", "running_mean", "running_var")
    return {"num_features": _agreed(*(_size(shapes, name) for name in names))}


@size_rule(nn.GroupNorm)
def _group_norm(module: nn.GroupNorm, shapes: Shapes) -> dict[str, object]:
    """Weight and bias (channels), which the groups must divide."""
    channels = _agreed(_size(shapes, "weight"), _size(shapes, "bias"))
    if channels is not None and channels % module.num_groups:
        raise ShapeError(
            "the groups of a GroupNorm must divide its channels.", channels=channels, groups=module.num_groups
        )
    return {"num_channels": channels}


@size_rule(nn.LayerNorm, nn.RMSNorm)
def _layer_norm(module: nn.LayerNorm, shapes: Shapes) -> dict[str, object]:
    """Weight and bias of the normalised shape."""
    given = {tuple(shapes[name]) for name in ("weight", "bias") if name in shapes}
    return {"normalized_shape": given.pop() if len(given) == 1 else None}


@size_rule(nn.Embedding, nn.EmbeddingBag)
def _embedding(module: nn.Embedding, shapes: Shapes) -> dict[str, object]:
    """Weight (vocabulary, width)."""
    rows, width = shapes["weight"]
    return {"num_embeddings": rows, "embedding_dim": width}


@size_rule(nn.PReLU)
def _prelu(module: nn.PReLU, shapes: Shapes) -> dict[str, object]:
    """Weight (channels)."""
    return {"num_parameters": shapes["weight"][0]}


@size_rule(nn.RNNBase)
def _recurrent(module: nn.RNNBase, shapes: Shapes) -> dict[str, object]:
    """Weights (gates · hidden, in) and (gates · hidden, out), biases (gates · hidden): all layers must agree."""
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    hidden, rest = divmod(shapes["weight_hh_l0"][0], gates)
    inputs = shapes["weight_ih_l0"][1]
    output = shapes["weight_hr_l0"][0] if module.proj_size else hidden
    directions = 2 if module.bidirectional else 1
    for name, shape in shapes.items():
        layer = int(name.split("_l")[1].split("_")[0])
        width = {"ih": inputs if layer == 0 else output * directions, "hh": output}.get(name.split("_")[1], hidden)
        expected = (output, hidden) if "_hr_" in name else (gates * hidden, width)[: len(shape)]
        if rest or tuple(shape) != expected:
            raise ShapeError(
                f"{type(module).__name__} needs all its weights to agree on one hidden size; with {name!r} as asked "
                "it would read past the end of a buffer.",
                tensor=tuple(shape),
                expected=expected,
                fix=f"resize every weight and bias in one transaction, {gates} equal gate blocks of rows each",
            )
    found: dict[str, object] = {"input_size": inputs, "hidden_size": hidden}
    return found | ({"proj_size": output} if module.proj_size else {})


@size_rule(nn.RNNCellBase)
def _recurrent_cell(module: nn.RNNCellBase, shapes: Shapes) -> dict[str, object]:
    """Weights (gates · hidden, in) and (gates · hidden, hidden), biases (gates · hidden)."""
    gates = module.weight_hh.shape[0] // module.hidden_size
    rows, hidden = shapes["weight_hh"]
    if rows != gates * hidden or any(shape[0] != rows for shape in shapes.values()):
        raise ShapeError(
            f"{type(module).__name__} needs all its weights to agree on one hidden size.",
            shapes={name: tuple(shape) for name, shape in shapes.items()},
            fix=f"resize every weight and bias in one transaction, {gates} equal gate blocks of rows each",
        )
    return {"input_size": shapes["weight_ih"][1], "hidden_size": hidden}


@size_rule(nn.MultiheadAttention)
def _attention(module: nn.MultiheadAttention, shapes: Shapes) -> dict[str, object]:
    """in_proj (3 · embed, embed), out_proj (embed, embed); heads keep their width, so their number follows."""
    if "in_proj_weight" not in shapes:
        return {}
    rows, embed = shapes["in_proj_weight"]
    expected = {
        "in_proj_weight": (3 * embed, embed),
        "in_proj_bias": (3 * embed,),
        "out_proj.weight": (embed, embed),
        "out_proj.bias": (embed,),
    }
    wrong = {name: tuple(shapes[name]) for name, shape in expected.items() if tuple(shapes.get(name, shape)) != shape}
    if wrong:
        raise ShapeError(
            "nn.MultiheadAttention has one width for its input, its heads together and its output.",
            embed_dim=embed,
            disagreeing=wrong,
            fix="resize in_proj_weight (both dims), in_proj_bias, out_proj.weight (both) and out_proj.bias together",
        )
    return {"embed_dim": embed, "kdim": embed, "vdim": embed, "num_heads": embed // module.head_dim}
