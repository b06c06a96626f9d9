"""The ops that multiply, and how many multiply-accumulate operations each makes of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["PRODUCTS", "Term"]


class Term(NamedTuple):
    """A product that an op computes.

    Args:
        macs: Multiply-accumulate operations, a multiple of the entries of each factor.
        factors: What may be a weight, the likeliest last.
    """

    macs: int
    factors: tuple[Tensor, ...] = ()


Terms = Callable[[Sequence[Any], Tensor], list[Term]]


def _matmul(first: int) -> Terms:
    """``(…, n, k) @ (…, k, m)``, or by a vector (k); the left factor is at a place among the arguments."""

    def terms(args: Sequence[Any], result: Tensor) -> list[Term]:
        left, right = args[first : first + 2]
        columns = right.shape[-1] if right.dim() > 1 else 1
        return [Term(left.numel() * columns, (left, right))]

    return terms


def _convolution(args: Sequence[Any], result: Tensor) -> list[Term]:
    """The first dim of the weight is that of the output's channels, or, transposed, of the input's."""
    x, weight = args[:2]
    is_transposed = args[6] is True
    return [Term(_uses(x if is_transposed else result, weight.shape[0]) * weight.numel(), (weight,))]


def _deformable(args: Sequence[Any], result: Tensor) -> list[Term]:
    """As a convolution."""
    return [Term(_uses(result, args[1].shape[0]) * args[1].numel(), (args[1],))]


def _attention(args: Sequence[Any], result: Tensor) -> list[Term]:
    """Query (b, h, n, d), key (b, h, m, d), value (b, h, m, e)."""
    query, key, value = args[:3]
    return [Term(_uses(query, query.shape[-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1]))]


def _recurrent(args: Sequence[Any], result: Tensor) -> list[Term]:
    """Input (t, b, i), weights (g · h, i) and (g · h, h)."""
    steps = args[0].shape[0] * args[0].shape[1]
    return [Term(steps * weight.numel(), (weight,)) for weight in args[1:3]]


def _trilinear(args: Sequence[Any], result: Tensor) -> list[Term]:
    """Three tensors laid out over common dims, of which `expand` names those that each lacks."""
    shapes = []
    for tensor, lacking in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for dim in sorted(lacking):
            shape.insert(dim, 1)
        shapes.append(shape)
    return [Term(math.prod(map(max, zip(*shapes, strict=True))), (args[1],))]


def _uses(tensor: Tensor, size: int) -> int:
    """Number of positions of a tensor, a dim of that size aside."""
    return tensor.numel() // max(1, size)


_FUSED_ATTENTION = (
    "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
    "fused_attention_overrideable", "attention_math_for_mps",
)  # fmt: skip

PRODUCTS: dict[str, Terms] = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.dot", "aten.vdot", "aten.mv", "aten._grouped_mm"), _matmul(0)),
    **dict.fromkeys(("aten.addmm", "aten.addmm_", "aten._addmm_activation", "aten.addmv", "aten.addmv_"), _matmul(1)),
    **dict.fromkeys(("aten.baddbmm", "aten.baddbmm_", "aten.addbmm", "aten.addbmm_"), _matmul(1)),
    **dict.fromkeys((f"aten._scaled_dot_product_{kind}" for kind in _FUSED_ATTENTION), _attention),
    "aten.convolution": _convolution,
    "torchvision.deform_conv2d": _deformable,
    "aten.mkldnn_rnn_layer": _recurrent,
    "aten._trilinear": _trilinear,
}
"""By name of the op: the products that it computes, given its arguments and its first result."""
