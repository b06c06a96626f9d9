"""Attention, in the ways in which it is written."""

from __future__ import annotations

from tests.graph.generated import Value, Writer, kind
from tests.graph.kinds.layers import layer

HEADS = ((2, 4), (3, 4), (4, 2), (2, 6))
"""(heads, width of a head)."""


def split_heads(w: Writer, x: Value, heads: str, width: str) -> str:
    """(b, t, h · d) -> (b, h, t, d)."""
    sizes = w.pick(f"{heads}, {width}", f"{heads}, -1", f"-1, {width}", f"{heads}, {x.width} // {heads}")
    ways = f"view(b, {x}.shape[1], {sizes})", f"unflatten(2, ({sizes}))", f"reshape(b, -1, {sizes})"
    way = w.pick(*ways[:2]) if "-1" in sizes else w.pick(*ways)
    return w.line(f"{x}.{way}.transpose(1, 2)")


def merged_heads(w: Writer, y: str, shape: tuple[int, ...], heads: str, width: str) -> Value:
    """(b, h, t, d) -> (b, t, h · d)."""
    ways = "flatten(2)", f"reshape(b, {shape[0]}, {heads} * {width})", f"reshape(b, {shape[0]}, -1)"
    return w.put(f"{y}.transpose(1, 2).{w.pick(*ways)}", shape)


def attended(w: Writer, q: str, k: str, v: str, width: str) -> str:
    """The weighted values, by torch's function or written out."""
    scale = w.pick(f"{width} ** -0.5", f"1 / math.sqrt({width})", f"{q}.shape[-1] ** -0.5", "0.4")
    if w.chance(0.4):
        options = w.pick("", f", scale={scale}", f", is_causal=True, scale={scale}")
        return w.line(f"F.scaled_dot_product_attention({q}, {k}, {v}{options})")
    scores = f"{q} @ {k}.{w.pick('transpose(-2, -1)', 'mT')} * {scale}"
    if w.chance(0.3):
        mask = w.buffer("torch.ones(40, 40).tril().bool()")
        scores = f"({scores}).masked_fill(~{mask}[:{q}.shape[2], :{k}.shape[2]], float('-inf'))"
    return w.line(f"({scores}).softmax(-1) @ {v}")


def sizes(w: Writer) -> tuple[int, int, str, str]:
    heads, width = w.pick(*HEADS)
    return heads, width, w.number(heads), w.number(width)


@kind("tokens")
def separate_attention(w: Writer, x: Value) -> Value:
    """With values of another width now and then."""
    heads, width, h, d = sizes(w)
    q, k = (split_heads(w, layer(w, x, heads * width), h, d) for _ in range(2))
    other = w.chance(0.25)
    width, e = (3, w.number(3)) if other else (width, d)
    v = split_heads(w, layer(w, x, heads * width), h, e)
    y = merged_heads(w, attended(w, q, k, v, d), x.wide(heads * width), h, e)
    return w.put(f"{x} + {layer(w, y, x.channels)}", x.shape)


@kind("tokens")
def fused_attention(w: Writer, x: Value) -> Value:
    heads, width, h, d = sizes(w)
    qkv = layer(w, x, 3 * heads * width)
    if w.chance(0.3):
        q, k, v = (
            split_heads(w, Value(part, x.wide(heads * width)), h, d) for part in w.names(3, f"{qkv}.chunk(3, -1)")
        )
    elif w.chance(0.5):
        q, k, v = w.names(3, f"{qkv}.view(b, {qkv}.shape[1], 3, {h}, {w.pick(d, '-1')}).permute(2, 0, 3, 1, 4)")
    else:
        q, k, v = w.names(3, f"{qkv}.unflatten(-1, ({h}, 3, {d})).transpose(1, 2).unbind(3)")
    return layer(w, merged_heads(w, attended(w, q, k, v, d), x.wide(heads * width), h, d), x.channels)


@kind("tokens")
def grouped_query_attention(w: Writer, x: Value) -> Value:
    groups, repeats, width = w.pick((2, 2, 4), (3, 2, 4), (2, 3, 2))
    n, r, d = w.number(groups), w.number(repeats), w.number(width)
    q = w.line(f"{layer(w, x, groups * repeats * width)}.unflatten(-1, (-1, {d})).transpose(1, 2)")
    k, v = (w.line(f"{layer(w, x, groups * width)}.unflatten(-1, (-1, {d})).transpose(1, 2)") for _ in range(2))
    way = w.pick("repeat", "expand", "kernel")
    if way == "repeat":
        k, v = (w.line(f"{y}.repeat_interleave({r}, dim=1)") for y in (k, v))
    elif way == "expand":
        t = x.shape[0]
        k, v = (
            w.line(f"{y}[:, :, None].expand(b, {n}, {r}, {t}, {d}).reshape(b, {n} * {r}, {t}, {d})") for y in (k, v)
        )
    else:
        y = w.line(f"F.scaled_dot_product_attention({q}, {k}, {v}, scale=0.5, enable_gqa=True)")
    y = y if way == "kernel" else attended(w, q, k, v, d)
    return layer(w, w.put(f"{y}.transpose(1, 2).flatten(2)", x.wide(groups * repeats * width)), x.channels)


@kind("tokens")
def rotary_attention(w: Writer, x: Value) -> Value:
    heads, width, h, d = sizes(w)
    q, k, v = (split_heads(w, layer(w, x, heads * width), h, d) for _ in range(3))
    angles = f"(torch.arange({x.shape[0]})[:, None] * torch.rand({width // 2}))"
    pairs = w.chance(0.5)
    if pairs:
        cos, sin = w.buffer(f"{angles}.cos()"), w.buffer(f"{angles}.sin()")
    else:
        cos, sin = w.buffer(f"{angles}.repeat(1, 2).cos()"), w.buffer(f"{angles}.repeat(1, 2).sin()")
    turned = []
    for y in (q, k):
        if pairs:
            even, odd = w.names(2, f"{y}[..., ::2], {y}[..., 1::2]")
            parts = f"{even} * {cos} - {odd} * {sin}, {even} * {sin} + {odd} * {cos}"
            turned.append(w.line(f"torch.stack([{parts}], -1).flatten(-2)"))
        else:
            half = w.pick(f"{d} // 2", f"{y}.shape[-1] // 2")
            left, right = w.names(2, w.pick(f"{y}.chunk(2, -1)", f"{y}[..., :{half}], {y}[..., {half}:]"))
            turned.append(w.line(f"{y} * {cos} + torch.cat([-{right}, {left}], -1) * {sin}"))
    y = merged_heads(w, attended(w, *turned, v, d), x.wide(heads * width), h, d)
    return w.put(f"{x} + {layer(w, y, x.channels)}", x.shape)


@kind("tokens")
def attention_with_bias(w: Writer, x: Value) -> Value:
    """A learned bias for each head and distance."""
    heads, width, h, d = sizes(w)
    t = x.shape[0]
    q, k, v = (split_heads(w, layer(w, x, heads * width), h, d) for _ in range(3))
    index = w.buffer(f"torch.arange({t})[:, None] - torch.arange({t}) + {t - 1}")
    if w.chance(0.5):
        bias = w.line(f"{w.raw(2 * t - 1, heads)}[{index}.flatten()].view({t}, {t}, -1).permute(2, 0, 1)")
    else:
        bias = w.line(f"{w.part(f'nn.Embedding({2 * t - 1}, {heads})')}({index}).permute(2, 0, 1)[None]")
    temperature = f" * {w.raw(heads, 1, 1)}" if w.chance(0.3) else ""
    y = w.line(f"({q} @ {k}.mT{temperature} + {bias}).softmax(-1) @ {v}")
    return layer(w, merged_heads(w, y, x.wide(heads * width), h, d), x.channels)


@kind("tokens")
def einsum_attention(w: Writer, x: Value) -> Value:
    heads, width, _, d = sizes(w)
    q, k, v = (w.line(f"{layer(w, x, heads * width)}.unflatten(-1, (-1, {d}))") for _ in range(3))
    weights = w.line(f'torch.einsum("bthd,bshd->bhts", {q}, {k}).softmax(-1)')
    y = w.put(f'torch.einsum("bhts,bshd->bthd", {weights}, {v}).flatten(2)', x.wide(heads * width))
    return w.put(f"{x} + {layer(w, y, x.channels)}", x.shape)


@kind("tokens")
def linear_attention(w: Writer, x: Value) -> Value:
    heads, width, h, d = sizes(w)
    q, k, v = (split_heads(w, layer(w, x, heads * width), h, d) for _ in range(3))
    feature = w.pick("F.relu({})", "F.elu({}) + 1", "{}")
    y = w.line(f"({feature.format(q)}) @ (({feature.format(k)}).mT @ {v})")
    return layer(w, merged_heads(w, y, x.wide(heads * width), h, d), x.channels)


@kind("tokens")
def torch_attention(w: Writer, x: Value) -> Value | None:
    heads = next(h for h in (2, 3, 1) if x.channels % h == 0)
    if heads == 1:
        return None
    attention = w.part(f"nn.MultiheadAttention({x.channels}, {heads}, batch_first=True)")
    others = [y for y in w.live if y.layout == "tokens" and y.channels == x.channels]
    source = w.pick(x, *others)
    return w.put(f"{x} + {attention}({x}, {source}, {source}{w.pick('', ', need_weights=False')})[0]", x.shape)


@kind("tokens")
def torch_encoder(w: Writer, x: Value) -> Value | None:
    heads = next(h for h in (2, 3, 1) if x.channels % h == 0)
    if heads == 1:
        return None
    options = f"{x.channels}, {heads}, {w.pick(8, 12)}, dropout=0.0, batch_first=True, norm_first={w.chance(0.5)}"
    return w.put(f"{w.part(f'nn.TransformerEncoderLayer({options})')}({x})", x.shape)


@kind("image")
def window_attention(w: Writer, x: Value) -> Value:
    """Windows of 2 by 2 pixels, shifted now and then."""
    heads, width, h, d = sizes(w)
    rows, columns = x.space
    y = w.line(f"{x}.permute(0, 2, 3, 1)")
    shift = w.chance(0.5)
    if shift:
        y = w.line(f"{y}.roll((-1, -1), (1, 2))")
    c = w.line(x.width)
    y = w.line(f"{y}.reshape(b, {rows // 2}, 2, {columns // 2}, 2, {c}).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, {c})")
    qkv = w.line(f"{layer(w, Value(y, (4, x.channels)), 3 * heads * width)}.reshape(-1, 4, 3, {h}, {d})")
    q, k, v = w.names(3, f"{qkv}.permute(2, 0, 3, 1, 4).unbind(0)")
    z = w.put(f"({q} @ {k}.mT * 0.5).softmax(-1) @ {v}", (heads, 4, width))
    z = w.put(f"{z}.transpose(1, 2).reshape(-1, 4, {h} * {d})", (4, heads * width))
    z = layer(w, z, x.channels)
    back = w.line(f"{z}.view(b, {rows // 2}, {columns // 2}, 2, 2, -1).permute(0, 1, 3, 2, 4, 5)")
    back = w.line(f"{back}.reshape(b, {rows}, {columns}, {c})")
    if shift:
        back = w.line(f"{back}.roll((1, 1), (1, 2))")
    return w.put(f"{x} + {back}.permute(0, 3, 1, 2)", x.shape)


@kind("tokens")
def pooled_by_queries(w: Writer, x: Value) -> Value:
    """Learned queries, each a weighted mean of the tokens."""
    queries = w.raw(4, x.channels)
    return w.put(f"({queries} @ {layer(w, x, x.channels)}.mT).softmax(-1) @ {x}", (4, x.channels))
