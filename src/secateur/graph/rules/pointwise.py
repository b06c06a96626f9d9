"""Ops that work position by position, with broadcasting: one rule for all of them."""

from __future__ import annotations

from secateur.graph.capture import Call, tensors_in
from secateur.graph.labels import Dim, Dims, Labels
from secateur.graph.rules._table import rule

__all__ = ["broadcast"]


def broadcast(labels: Labels, shape: tuple[int, ...], operands: list[tuple[tuple[int, ...], Dims]]) -> Dims:
    """State that operands agree wherever they are not stretched.

    Args:
        labels: Where facts are written down.
        shape: Shape of the result.
        operands: Shape and dims of each operand; dims are aligned from the right.

    Returns:
        Dims of the result.
    """
    result: list[Dim] = []
    for position, size in enumerate(shape):
        found: Dim | None = None
        for operand, dims in operands:
            own = position - len(shape) + len(operand)
            if own < 0 or operand[own] != size or size == 1:
                continue
            if found is None:
                found = dims[own]
            else:
                labels.equal(found, dims[own])
        result.append(labels.fixed_dim(size) if found is None else found)
    return tuple(result)


# Ops that are pointwise without torch's tag saying so.
@rule(
    "pointwise",
    "aten.clone",
    "aten.copy_",
    "aten._to_copy",
    "aten.detach",
    "aten.alias",
    "aten.lift_fresh",
    "aten.fill_",
    "aten.zero_",
    "aten.masked_fill",
    "aten.masked_fill_",
    "aten.tril",
    "aten.triu",
    "aten.bernoulli_",
    "aten.native_dropout",
    "aten._prelu_kernel",
    "aten.empty_like",
    "aten.zeros_like",
    "aten.ones_like",
    "aten.full_like",
    "aten.rand_like",
    "aten.randn_like",
)
def pointwise(call: Call) -> list[Dims]:
    """``out[i] = f(a[i], b[i], …)``: the same position of every operand goes together."""
    inputs = tensors_in((call.args, call.kwargs))
    outputs = tensors_in(call.out)
    operands = [(tuple(tensor.shape), call.dims(tensor)) for tensor in inputs]
    return [broadcast(call.labels, tuple(out.shape), operands) for out in outputs]
