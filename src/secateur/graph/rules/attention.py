"""Scaled dot-product attention, as one op."""

from __future__ import annotations

from torch import Tensor

from secateur.graph.capture import Call, tensors_in
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_flash_attention",
      "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention")  # fmt: skip
def attention(call: Call) -> list[Dims]:
    """Query (b, h, n, d), key (b, h, m, d), value (b, h, m, e), mask (…, n, m) -> (b, h, n, e), log-sum (b, h, n)."""
    query, key, value = (call.dims(t) for t in call.args[:3])
    for part in (key, value):
        for d in (0, 1):
            call.equal(query[d], part[d])
    call.equal(query[3], key[3])
    call.equal(key[2], value[2])
    call.mix(key[2])
    if call.arg(-1, "scale") is None:
        call.mix(query[3])
    mask = call.kwargs.get("attn_mask")
    if isinstance(mask, Tensor):
        full = (query[0], query[1], query[2], key[2])
        for size, own, theirs in zip(mask.shape, call.dims(mask), full[-mask.dim() :], strict=True):
            if size > 1:
                call.equal(own, theirs)
    out = (query[0], query[1], query[2], value[3])
    others = [call.labels.fixed_dims(t.shape) for t in tensors_in(call.out)[1:]]
    if others:
        others[0] = query[:3]
    return [out, *others]
