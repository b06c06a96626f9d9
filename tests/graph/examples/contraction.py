"""Calls of matrix products, convolutions and attention."""

from __future__ import annotations

from typing import Any

import torch

from tests.graph.oracle import Case, Draw, Size, example


@example("aten.mm")
def mm(g: Draw) -> Case:
    n, k, m = g.sizes(3)
    return Case((g.real(n, k), g.real(k, m)))


@example("aten.bmm")
def bmm(g: Draw) -> Case:
    b, n, k, m = g.sizes(4)
    return Case((g.real(b, n, k), g.real(b, k, m)))


@example("aten.addmm", "aten._addmm_activation")
def addmm(g: Draw) -> Case:
    n, k, m = g.sizes(3)
    return Case((g.choose([g.real(m), g.real(n, m), g.real(n, 1), g.real(1)]), g.real(n, k), g.real(k, m)))


@example("aten.addmm_")
def addmm_(g: Draw) -> Case:
    n, k, m = g.sizes(3)
    return Case((g.real(n, m), g.real(n, k), g.real(k, m)))


@example("aten.baddbmm")
def baddbmm(g: Draw) -> Case:
    b, n, k, m = g.sizes(4)
    return Case((g.choose([g.real(m), g.real(b, n, m), g.real(n, 1)]), g.real(b, n, k), g.real(b, k, m)))


@example("aten.baddbmm_")
def baddbmm_(g: Draw) -> Case:
    b, n, k, m = g.sizes(4)
    return Case((g.real(b, n, m), g.real(b, n, k), g.real(b, k, m)))


@example("aten.addbmm", "aten.addbmm_")
def addbmm(g: Draw) -> Case:
    b, n, k, m = g.sizes(4)
    return Case((g.real(n, m), g.real(b, n, k), g.real(b, k, m)))


@example("aten.dot", "aten.vdot")
def dot(g: Draw) -> Case:
    n = g.size()
    return Case((g.real(n), g.real(n)))


@example("aten.mv")
def mv(g: Draw) -> Case:
    n, k = g.sizes(2)
    return Case((g.real(n, k), g.real(k)))


@example("aten.addmv", "aten.addmv_")
def addmv(g: Draw) -> Case:
    n, k = g.sizes(2)
    return Case((g.real(n), g.real(n, k), g.real(k)))


@example("aten.addr", "aten.addr_")
def addr(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.real(n), g.real(m)))


@example("aten._cdist_forward")
def cdist(g: Draw) -> Case:
    b, n, m, k = g.sizes(4)
    return Case((g.real(b, n, k), g.real(b, m, k), 2.0, None))


@example("aten._euclidean_dist")
def euclidean(g: Draw) -> Case:
    n, m, k = g.sizes(3)
    return Case((g.real(n, k), g.real(m, k)))


@example("aten._trilinear")
def trilinear(g: Draw) -> Case:
    b, o, i, j = g.sizes(4)
    return Case((g.real(b, i), g.real(o, i, j), g.real(b, j), [1, 3], [0], [1, 2], [2, 3]))


def grouped_mm_by_hand(rows: Any, weights: Any, ends: Any) -> Any:
    """The same without the op's demand on strides."""
    parts = [rows[a:b] @ w for a, b, w in zip([0, *ends[:-1]], ends, weights, strict=True)]
    return torch.cat(parts)


@example("aten._grouped_mm")
def grouped_mm(g: Draw) -> Case:
    experts, k, m = g.pick(2, 3), 8 * g.pick(1, 2), 8 * g.pick(1, 2)
    rows, weights = (torch.randn(*shape).bfloat16() for shape in ((4 * experts, k), (experts, k, m)))
    ends = torch.arange(4, 4 * experts + 1, 4, dtype=torch.int32)
    return Case((rows, weights, ends), again=grouped_mm_by_hand)


@example("aten.convolution")
def convolution(g: Draw) -> Case:
    transposed = bool(g.pick(0, 1))
    groups, each, out, spatial = g.pick(1, 3), g.pick(1, 3), g.pick(1, 3), g.pick(1, 2)
    kernel = (groups * each, out) if transposed else (groups * out, each)
    weight = g.real(*kernel, *[2] * spatial)
    bias = g.choose([None, g.real(groups * out)])
    options = ([1] * spatial, [0] * spatial, [1] * spatial, transposed, [0] * spatial)
    x = g.real(g.size(), groups * each, *[4] * spatial)
    return Case((x, weight, bias, *options, Size(groups, lambda after: after.groups)))


def attention_by_hand(query: Any, key: Any, value: Any, dropout: float, causal: bool, **options: Any) -> Any:
    """The op's two results. The kernel refuses other widths in value than in query; then models get another one."""
    scores = query @ key.transpose(-2, -1) * options.get("scale", query.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
    scores = scores + options.get("attn_mask", 0.0)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


@example("aten._scaled_dot_product_flash_attention_for_cpu")
def attention(g: Draw) -> Case:
    batch, heads, n, m, d = g.sizes(5)
    masks = [g.real(n, m), g.real(1, heads, n, m), g.real(batch, 1, n, m), g.real(batch, 1, 1, m)]
    options = g.choose([{"scale": 0.5}, {"scale": 0.5, "attn_mask": g.choose(masks)}, {}])
    causal = "attn_mask" not in options and bool(g.pick(0, 1))
    key, value = g.real(batch, heads, m, d), g.real(batch, heads, m, d)
    return Case((g.real(batch, heads, n, d), key, value, 0.0, causal), options, again=attention_by_hand)


@example("aten.mkldnn_rnn_layer", compared=3)
def rnn_layer(g: Draw) -> Case:
    t, b, i, h = 2, g.size(), g.size(), g.size()
    gates = 4
    real = lambda *shape: g.real(*shape).float()  # noqa: E731
    args = (real(t, b, i), real(gates * h, i), real(gates * h, h), real(gates * h), real(gates * h))
    states = (real(1, b, h), real(1, b, h))
    hidden = Size(h, lambda after: after.shapes[0][-1])
    return Case((*args, *states, False, [], 2, hidden, 1, True, False, False, False))
