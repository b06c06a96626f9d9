"""Sizes that torch.nn modules record (``in_features``, ``padding_idx``, …), computed from the change of their tensors.

One row a module class. A rule sees the shapes after the change and returns the attributes that they determine, None
where the tensors do not agree yet: a weight that was cut before its bias leaves ``out_features`` alone until the bias
has followed. Where disagreement would not raise in the next forward but compute something else (other units in each
gate, other channels in a group), the rule refuses instead. Convolutions and group norms, recurrent layers and attention
have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from secateur._errors import ShapeError
from secateur.surgery.change import Change
from secateur.surgery.selection import Selection
from secateur.surgery.shapes import Shapes

__all__ = ["SIZES", "Shapes", "SizeRule", "agreed", "recorded_sizes", "same_positions", "size_rule"]


SizeRule = Callable[[Any, Shapes], Mapping[str, object]]
"""(module, shapes after) -> {attribute: value}; a value of None means: not determined, leave it."""

SIZES: dict[type[nn.Module], SizeRule] = {}


def size_rule(*kinds: type[nn.Module]) -> Callable[[SizeRule], SizeRule]:
    """Register which attributes the shapes of a module's tensors determine.

    Args:
        *kinds: Module classes; subclasses are covered unless they are registered themselves.

    Returns:
        The decorator for a function of the module and a mapping of shapes after the change by tensor name, which
        returns attributes and their values. A value of None leaves the attribute alone.

    Example:
        >>> import torch
        >>> class Scale(nn.Module):
        ...     '''Multiplies features.'''
        ...     def __init__(self, features):
        ...         super().__init__()
        ...         self.features = features
        ...         self.weight = nn.Parameter(torch.ones(features))
        >>> @size_rule(Scale)
        ... def scale_sizes(module, shapes):
        ...     return {"features": shapes["weight"][0]}
        >>> from secateur import resize_
        >>> scale = Scale(4)
        >>> _ = resize_(scale, "weight", dim=0, keep=[0, 3])
        >>> scale.features
        2
    """

    def register(rule: SizeRule) -> SizeRule:
        SIZES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def recorded_sizes(module: nn.Module, changes: Mapping[int, Change]) -> dict[str, object]:
    """The attributes of `module` that must change, with their new values.

    Args:
        module: Any module; classes without a row record nothing.
        changes: All changes of its model, by the tensor's id.

    Raises:
        ShapeError: The changes contradict each other in a way that the module's forward would not notice.
        UnsupportedError: The module has no form with such tensors.
    """
    rule = next((SIZES[kind] for kind in type(module).__mro__ if kind in SIZES), None)
    shapes = Shapes(module, changes) if rule else None
    if rule is None or shapes is None or not shapes.is_changed:
        return {}
    found = rule(module, shapes)
    return {k: v for k, v in found.items() if v is not None and v != getattr(module, k, v)}


def agreed(*sizes: int | None) -> int | None:
    """The size that all given ones have in common, None if they differ; those that are None do not count."""
    given = {size for size in sizes if size is not None}
    return given.pop() if len(given) == 1 else None


def same_positions(shapes: Shapes, *names: str) -> int | None:
    """The size that the first dims of several tensors have in common, None if they differ.

    Raises:
        ShapeError: Two of them change together and keep different positions.
    """
    selections = [(name, s) for name in names if (s := shapes.kept(name, 0)) is not None]
    for name, selection in selections[1:]:
        first, other = selections[0]
        if not selection.same_as(other):
            raise ShapeError(
                f"{first!r} and {name!r} of one module keep different positions.",
                **{first: _shown(other), name: _shown(selection)},
                fix="keep the same positions in both",
            )
    return agreed(*(shapes.size(name) for name in names))


def _shown(selection: Selection) -> str:
    """A selection, as the error shows it."""
    kept = selection.keep[:6].tolist()
    return f"{selection.new_size} of {selection.size}: {kept}{'…' if selection.keep.numel() > 6 else ''}"


@size_rule(nn.Linear)
def _linear(module: nn.Linear, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in), bias (out)."""
    return {"in_features": shapes.size("weight", 1), "out_features": same_positions(shapes, "weight", "bias")}


@size_rule(nn.Bilinear)
def _bilinear(module: nn.Bilinear, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in1, in2), bias (out)."""
    return {
        "in1_features": shapes.size("weight", 1),
        "in2_features": shapes.size("weight", 2),
        "out_features": same_positions(shapes, "weight", "bias"),
    }


@size_rule(nn.modules.batchnorm._NormBase)
def _batch_norm(module: nn.BatchNorm2d, shapes: Shapes) -> dict[str, object]:
    """Weight, bias, running mean and variance, all (features)."""
    return {"num_features": same_positions(shapes, "weight", "bias", "running_mean", "running_var")}


@size_rule(nn.LayerNorm, nn.RMSNorm)
def _layer_norm(module: nn.LayerNorm, shapes: Shapes) -> dict[str, object]:
    """Weight and bias of the normalised shape."""
    same_positions(shapes, "weight", "bias")
    given = {tuple(shapes[name]) for name in ("weight", "bias") if name in shapes}
    return {"normalized_shape": given.pop() if len(given) == 1 else None}


@size_rule(nn.PReLU)
def _prelu(module: nn.PReLU, shapes: Shapes) -> dict[str, object]:
    """Weight (channels)."""
    return {"num_parameters": shapes.size("weight")}


@size_rule(nn.Embedding, nn.EmbeddingBag)
def _embedding(module: nn.Embedding, shapes: Shapes) -> dict[str, object]:
    """Weight (vocabulary, width); the padding row moves up by the removed rows before it, and must not go itself."""
    rows, padding = shapes.kept("weight", 0), module.padding_idx
    if rows is not None and padding is not None:
        at = (rows.positions == padding).nonzero().flatten().tolist()
        if not at:
            raise ShapeError(
                "the padding row of an embedding cannot be removed while `padding_idx` names it.",
                padding_idx=padding,
                fix=f"keep row {padding}, or set padding_idx = None first",
            )
        padding = at[0]
    return {
        "num_embeddings": shapes.size("weight"),
        "embedding_dim": shapes.size("weight", 1),
        "padding_idx": padding,
    }
