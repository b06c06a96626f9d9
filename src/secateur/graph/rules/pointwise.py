"""Ops that work position by position, with broadcasting: one rule for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, Labels
from secateur.graph.rules._table import rule

__all__ = ["broadcast", "broadcast_all"]


def broadcast(labels: Labels, shape: tuple[int, ...], operands: Iterable[tuple[tuple[int, ...], Dims]]) -> Dims:
    """State that operands agree wherever they are not stretched.

    Args:
        labels: Where facts are written down.
        shape: Shape of the result.
        operands: Shape and dims of each operand; dims are aligned from the right.

    Returns:
        Dims of the result.
    """
    result: list[Dim | None] = [None] * len(shape)
    for operand, dims in operands:
        lead = len(shape) - len(operand)
        for d, size in enumerate(operand, lead):
            if d < 0 or size == 1 or shape[d] != size:
                continue
            known = result[d]
            if known is None:
                result[d] = dims[d - lead]
            else:
                labels.equal(known, dims[d - lead])
    return tuple(labels.fixed_dim(n) if dim is None else dim for n, dim in zip(shape, result, strict=True))


def broadcast_all(call: Call, tensors: Iterable[Tensor], shape: Iterable[int]) -> Dims:
    """`broadcast` for tensors."""
    return broadcast(call.labels, tuple(shape), [(tuple(t.shape), call.dims(t)) for t in tensors])


# Ops that are pointwise without torch's tag saying so.
@rule(
    "pointwise", "aten.clone", "aten.copy", "aten.copy_", "aten._to_copy", "aten.detach", "aten.alias",
    "aten.lift_fresh", "aten.lift", "aten._conj", "aten._conj_physical", "aten._neg_view",
    "aten.fill", "aten.fill_", "aten.zero", "aten.zero_", "aten.masked_fill", "aten.masked_fill_", "aten.complex",
    "aten.polar", "aten._prelu_kernel", "aten.hardswish", "aten.hardswish_", "aten.gelu_", "aten.mish_",
    "aten.threshold_", "aten.abs_", "aten.copysign_", "aten.heaviside_", "aten.gcd_", "aten.lcm_", "aten.eq_",
    "aten.ne_", "aten.le_", "aten.lt_", "aten.ge_", "aten.gt_", "aten.floor_divide", "aten.floor_divide_",
    "aten.rsub", "aten.log_sigmoid_forward", "aten._add_relu", "aten.empty_like", "aten.zeros_like",
    "aten.ones_like", "aten.full_like",
)  # fmt: skip
def pointwise(call: Call) -> list[Dims]:
    """``out[i] = f(a[i], b[i], …)``: the same position of every operand goes together."""
    operands = [(tuple(tensor.shape), call.dims(tensor)) for tensor in call.inputs]
    results = []
    for out in call.outputs:
        shape = tuple(out.shape)
        empty = not out.numel() and all(out.shape != tensor.shape for tensor in call.inputs)  # an unused result
        results.append(call.labels.fixed_dims(shape) if empty else broadcast(call.labels, shape, operands))
    return results


@rule(
    "aten.bernoulli", "aten.bernoulli_", "aten.native_dropout", "aten.rrelu_with_noise", "aten.rrelu_with_noise_",
    "aten.rand_like", "aten.randn_like", "aten.randint_like", "aten.uniform_", "aten.normal_", "aten.exponential_",
    "aten.random_", "aten.log_normal_", "aten.cauchy_", "aten.geometric_", "aten.normal", "aten.poisson",
)  # fmt: skip
def random_like(call: Call) -> list[Dims]:
    """The same with random numbers: fewer positions are another draw."""
    results = pointwise(call)
    call.capture.random += [(dim, call.name) for dims in results for dim in dims if dim]
    return results


@rule("aten.tril", "aten.triu", "aten.tril_", "aten.triu_")
def triangle(call: Call) -> list[Dims]:
    """Zero one side of a diagonal, which would shift with the positions of the last two dims."""
    dims = call.dims(call.args[0])
    for dim in dims[-2:]:
        call.block_if_used(dim, f"{call.name} compares the numbers of its positions")
    return [dims]
