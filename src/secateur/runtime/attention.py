"""nn.MultiheadAttention whose projections are layers of their own, so that each can have a format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from secateur.graph.heads import FreeHeadsAttention, can_be_freed, free_heads_

__all__ = ["OpenAttention", "can_be_opened", "open_attention_"]


class OpenAttention(FreeHeadsAttention):
    """nn.MultiheadAttention of modules: ``in_proj``, or ``q_proj``, ``k_proj`` and ``v_proj``; and ``out_proj``."""

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
        """Query, key and value after their projections; one product for all three where they are one tensor."""
        if "in_proj" not in self._modules:
            yield from (
                self.get_submodule(f"{kind}_proj")(x) for kind, x in zip("qkv", (query, key, value), strict=True)
            )
        elif query is key and key is value:
            yield from self._joint(query)
        else:
            for i, tensor in enumerate((query, key, value)):
                yield self._joint(tensor)[i]

    def _joint(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The three projections of one tensor."""
        projected: Tensor = self.get_submodule("in_proj")(tensor)
        return projected.chunk(3, dim=-1)

    def _merged(self, heads: Tensor) -> Tensor:
        """The output of all heads together, projected back."""
        return cast(Tensor, self.out_proj(heads))

    def tensor_of_closed(self, leaf: str) -> Tensor | None:
        """What nn.MultiheadAttention calls ``in_proj_weight``, ``in_proj_bias``, ``q_proj_weight`` and so on."""
        kind = leaf.rpartition("_")[2]
        if leaf.startswith("in_proj"):
            if "in_proj" in self._modules:
                return cast(Tensor | None, getattr(self.get_submodule("in_proj"), kind))
            parts = [getattr(self.get_submodule(f"{each}_proj"), kind) for each in "qkv"]
            return None if parts[0] is None else torch.cat(parts)
        return cast(Tensor | None, getattr(self.get_submodule(leaf.rpartition("_")[0]), kind))


def can_be_opened(module: nn.Module) -> bool:
    """Whether a module is an nn.MultiheadAttention that `open_attention_` takes."""
    return type(module) is FreeHeadsAttention or can_be_freed(module)


def open_attention_(module: nn.MultiheadAttention, *, joint: bool) -> None:
    """Turn an attention into an `OpenAttention` in place; its function stays the same.

    Args:
        module: One that `can_be_opened`.
        joint: Have one product for query, key and value; possible where their widths are the same.
    """
    free_heads_(module)
    joint = joint and module.in_proj_weight is not None
    weights = _weights(module)
    biases: list[Any] = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    module.__class__ = OpenAttention
    for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
        module._parameters[name] = None
    if joint:
        module.in_proj = _linear(torch.cat(weights), None if biases[0] is None else torch.cat(biases))
        return
    for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
        module.add_module(name, _linear(weight, bias))


def _weights(module: nn.MultiheadAttention) -> list[Tensor]:
    """The weights of query, key and value."""
    if module.in_proj_weight is not None:
        return list(module.in_proj_weight.chunk(3))
    return [cast(Tensor, getattr(module, f"{kind}_proj_weight")) for kind in "qkv"]


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with given values."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer
