"""Tensors that are made from sizes, and numbers that go to Python."""

from __future__ import annotations

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast_all

__all__: list[str] = []


@rule(
    "aten.empty", "aten.zeros", "aten.ones", "aten.full", "aten.new_zeros", "aten.new_ones", "aten.new_empty",
    "aten.new_full", "aten.empty_strided", "aten.new_empty_strided", "aten.empty_permuted",
)  # fmt: skip
def make(call: Call) -> list[Dims]:
    """All positions hold the same, so any of them may be left out: they are free to be what they are combined with."""
    return [tuple(call.free_dim(size) for size in out.shape) for out in call.outputs]


@rule("aten.rand", "aten.randn", "aten.randint", "aten.normal.float_float")
def make_random(call: Call) -> list[Dims]:
    """Positions differ, but none means more than another: fewer are another draw."""
    results = make(call)
    call.capture.random += [(dim, call.name) for dims in results for dim in dims if dim]
    return results


@rule(
    "aten.arange", "aten.randperm", "aten.linspace", "aten.logspace", "aten.eye", "aten.scalar_tensor",
    "aten.tril_indices", "aten.triu_indices", "aten.hann_window",
)  # fmt: skip
def make_numbers(call: Call) -> list[Dims]:
    """Positions hold their own numbers, so none can be left out."""
    return call.fixed()


@rule(
    "aten._local_scalar_dense", "aten._assert_async", "aten._functional_assert_async", "aten._assert_tensor_metadata",
    "aten._linalg_check_errors", "aten._fused_sdp_choice", "aten.is_pinned", "prim.device", "aten.sym_size",
    "aten.sym_numel", "aten.sym_stride", "aten.sym_storage_offset",
)  # fmt: skip
def to_python(call: Call) -> list[Dims]:
    """A number for Python; no tensor comes of it."""
    return call.fixed()


@rule("aten.equal", "aten.allclose", "aten.is_same_size")
def compare(call: Call) -> list[Dims]:
    """One truth value for two tensors of the same shape."""
    one, other = call.args[:2]
    if one.shape == other.shape:
        broadcast_all(call, (one, other), one.shape)
    return []
