"""Scaled dot-product attention, as one op."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast

__all__: list[str] = []


@rule(
    "aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable", "aten._scaled_dot_product_attention_math_for_mps",
)  # fmt: skip
def attention(call: Call) -> list[Dims]:
    """Query (b, h, n, d), key (b, k, m, d), value (b, k, m, e), mask (…, n, m) -> (b, h, n, e), log-sum (b, h, n).

    With fewer key heads than query heads, query heads are (key head, repetition).
    """
    query, key, value = (call.dims(tensor) for tensor in call.args[:3])
    for d in (0, 1, 2):
        call.equal(key[d], value[d])
    call.equal(query[0], key[0])
    call.equal(query[3], key[3])
    call.mix(key[2])
    if call.arg("scale") is None:
        call.mix(query[3])  # the default scale is computed from its size
    heads, groups = call.args[0].shape[1], call.args[1].shape[1]
    if heads == groups:
        call.equal(query[1], key[1])
    else:
        group, _ = call.labels.split(call.labels.merge(query[1]), groups)
        call.equal(call.labels.tidy((group,)), key[1])
    _mask(call, (*query[:3], key[2]))
    call.capture.multiplied(*query, key[2])
    call.capture.multiplied(*query[:3], key[2], value[3])
    out = (*query[:3], value[3])
    known = {tuple(call.args[0].shape[:3]): query[:3]}
    others = (known.get(tuple(t.shape), call.labels.fixed_dims(t.shape)) for t in call.outputs[1:])
    return [out, *others]


def _mask(call: Call, scores: Dims) -> None:
    """The mask is added to scores (b, h, n, m); one of its sizes must not shift."""
    query, key = call.args[0], call.args[1]
    mask = call.arg("attn_mask", call.arg("attn_bias"))
    if isinstance(mask, Tensor):
        shape = (*query.shape[:3], key.shape[2])
        broadcast(call.labels, shape, [(shape, scores), (tuple(mask.shape), call.dims(mask))])
    if call.arg("is_causal"):
        for dim in scores[2:]:
            call.block(dim, "causal attention compares the numbers of its positions")
