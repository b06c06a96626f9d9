"""Tensors that are made from sizes: their dims are free to be whatever they are combined with."""

from __future__ import annotations

from secateur.graph.capture import Call, tensors_in
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.empty", "aten.zeros", "aten.ones", "aten.full", "aten.new_zeros", "aten.new_ones", "aten.new_empty",
      "aten.new_full", "aten.empty_strided", "aten.new_empty_strided", "aten.empty_permuted")  # fmt: skip
def make(call: Call) -> list[Dims]:
    """All positions hold the same, so any of them may be left out."""
    return [tuple(call.labels.fresh_dim(size) for size in call.out.shape)]


@rule("aten.arange", "aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.linspace", "aten.eye",
      "aten.scalar_tensor", "aten._local_scalar_dense", "aten.is_same_size", "aten.bernoulli")  # fmt: skip
def number(call: Call) -> list[Dims]:
    """Positions differ from each other, so none can be left out."""
    return [call.labels.fixed_dims(out.shape) for out in tensors_in(call.out)]
