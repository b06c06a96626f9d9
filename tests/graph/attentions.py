"""Small attention layers, one for each way in which they are written, with the number of units that each must have.

The width inside attention is (heads, width of a head). Removing a head is exact; so is the width of heads, unless its
size is also the scale.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.structures import IMAGE, Net, Structure
from tests.graph.structures import structure as any_structure

ATTENTIONS: dict[str, Structure] = {}

structure = partial(any_structure, table=ATTENTIONS)

TOKENS = (2, 5, 6)
HEADS, WIDTH = 3, 4
INSIDE = HEADS * WIDTH


def projections(inside: int = INSIDE, key: int = INSIDE, value: int = INSIDE, **others: Any) -> dict[str, Any]:
    """Linear layers into and out of attention."""
    inwards = {"q": nn.Linear(6, inside), "k": nn.Linear(6, key), "v": nn.Linear(6, value)}
    return {**inwards, "out": nn.Linear(inside, 4), **others}


def heads(x: Tensor, width: int) -> Tensor:
    """(b, t, h · d) -> (b, h, t, d)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """(b, h, t, d) -> (b, t, h · d)."""
    return x.transpose(1, 2).flatten(2)


@structure(TOKENS, units=HEADS + WIDTH)
def separate_projections() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=self.scale)))

    return Net(forward, **projections(), head_dim=WIDTH, scale=0.5)


@structure(TOKENS, units=HEADS, why=("the default scale of attention depends on its size",))
def default_scale() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v)))

    return Net(forward, **projections(), head_dim=WIDTH)


@structure(TOKENS, units=HEADS + WIDTH)
def scale_from_the_width_of_heads() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged((q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1) @ v))

    return Net(forward, **projections(), head_dim=WIDTH)


@structure(TOKENS, units=HEADS + WIDTH)
def scale_from_a_quotient_of_attributes() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.inside // self.heads) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.inside // self.heads)
        return self.out(merged(scores.softmax(-1) @ v))

    return Net(forward, **projections(), inside=INSIDE, heads=HEADS)


@structure(TOKENS, units=HEADS, why=("the code computes with its size",))
def scale_from_the_shape_of_the_query() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged((q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v))

    return Net(forward, **projections(), head_dim=WIDTH)


@structure(TOKENS, units=HEADS, why=("the code computes with its size",))
def scale_as_a_tensor() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged((q @ k.transpose(-2, -1) / torch.sqrt(torch.tensor(self.head_dim))).softmax(-1) @ v))

    return Net(forward, **projections(), head_dim=WIDTH)


def windowed(scale: Any, width: Any) -> nn.Module:
    """Attention inside a residual stream that is as wide as all heads together."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.inwards(x)
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, width(self, c)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * scale(self, c), qkv[1], qkv[2]
        x = x + self.inside((q @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).reshape(b, n, c))
        return self.outwards(x)

    parts = {"inwards": nn.Linear(6, INSIDE), "inside": nn.Linear(INSIDE, INSIDE), "outwards": nn.Linear(INSIDE, 4)}
    return Net(forward, **parts, qkv=nn.Linear(INSIDE, 3 * INSIDE), heads=HEADS)


@structure(TOKENS, units=HEADS, why=("the code computes with its size",))
def scale_from_the_width_of_the_stream() -> nn.Module:
    return windowed(lambda self, c: (c // self.heads) ** -0.5, lambda self, c: c // self.heads)


@structure(TOKENS, units=HEADS, why=("the code computes with its size",))
def scale_from_the_width_of_the_stream_alone() -> nn.Module:
    return windowed(lambda self, c: (c // self.heads) ** -0.5, lambda self, c: -1)


@structure(TOKENS, units=HEADS + WIDTH + 2)
def other_width_in_value() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k = (heads(layer(x), self.head_dim) for layer in (self.q, self.k))
        v = heads(self.v(x), self.value_dim)
        return self.out(merged((q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v))

    parts = projections(value=HEADS * 2)
    parts["out"] = nn.Linear(HEADS * 2, 4)
    return Net(forward, **parts, head_dim=WIDTH, value_dim=2)


@structure(TOKENS, units=HEADS + WIDTH)
def fused_projection() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5)))

    return Net(forward, qkv=nn.Linear(6, 3 * INSIDE), out=nn.Linear(INSIDE, 4), num_heads=HEADS, head_dim=WIDTH)


@structure(TOKENS, units=HEADS + WIDTH)
def fused_projection_in_chunks() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(part, self.head_dim) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5)))

    return Net(forward, qkv=nn.Linear(6, 3 * INSIDE), out=nn.Linear(INSIDE, 4), head_dim=WIDTH)


# Six query heads share three key heads, two each: (key head, repetition).
GROUPED = {"inside": 6 * WIDTH, "head_dim": WIDTH, "repeats": 2}


@structure(TOKENS, units=3 + 2 + WIDTH)
def grouped_queries_repeated() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        k, v = (tensor.repeat_interleave(self.repeats, dim=1) for tensor in (k, v))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5)))

    return Net(forward, **projections(**GROUPED))


@structure(TOKENS, units=3 + 2 + WIDTH)
def grouped_queries_expanded() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        b, n, t, d = k.shape
        k, v = (y[:, :, None].expand(b, n, self.repeats, t, d).reshape(b, n * self.repeats, t, d) for y in (k, v))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5)))

    return Net(forward, **projections(**GROUPED))


@structure(TOKENS, units=3 + 2 + WIDTH)
def grouped_queries_by_the_kernel() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5, enable_gqa=True)))

    return Net(forward, **projections(**GROUPED))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the two halves of a head's width as one plane."""
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat([-right, left], -1) * sin


@structure(TOKENS, units=HEADS + 2)
def rotary_in_halves() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        q, k = turned(q, self.cos, self.sin), turned(k, self.cos, self.sin)
        return self.out(merged(F.scaled_dot_product_attention(q, k, v, scale=0.5)))

    angles = torch.arange(5.0)[:, None] * torch.rand(2).repeat(2)
    return Net(forward, **projections(), head_dim=WIDTH, cos=angles.cos(), sin=angles.sin())


@structure(TOKENS, units=HEADS + 2)
def rotary_of_neighbours() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        def turned(x: Tensor) -> Tensor:
            even, odd = x[..., ::2], x[..., 1::2]
            parts = even * self.cos - odd * self.sin, even * self.sin + odd * self.cos
            return torch.stack(parts, -1).flatten(-2)

        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged(F.scaled_dot_product_attention(turned(q), turned(k), v, scale=0.5)))

    angles = torch.arange(5.0)[:, None] * torch.rand(2)
    return Net(forward, **projections(), head_dim=WIDTH, cos=angles.cos(), sin=angles.sin())


@structure(TOKENS, units=HEADS + 2, why=("its size 2 is written in the code (unflatten)",))
def rotary_of_complex_numbers() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        def turned(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(self.angles), self.angles)).flatten(-2)

        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        return self.out(merged(F.scaled_dot_product_attention(turned(q), turned(k), v, scale=0.5)))

    return Net(forward, **projections(), head_dim=WIDTH, angles=torch.arange(5.0)[:, None] * torch.rand(2))


@structure(TOKENS, units=HEADS + WIDTH, why=("its positions are looked up by number",))
def relative_position_bias() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(layer(x), self.head_dim) for layer in (self.q, self.k, self.v))
        bias = self.table[self.index.flatten()].view(5, 5, -1).permute(2, 0, 1)
        return self.out(merged((q @ k.transpose(-2, -1) * 0.5 + bias).softmax(-1) @ v))

    at = torch.arange(5)
    index = at[:, None] - at[None] + 4
    return Net(forward, **projections(), head_dim=WIDTH, table=nn.Parameter(torch.randn(9, HEADS)), index=index)


@structure(IMAGE, units=8 + 8 + HEADS + WIDTH)
def shifted_windows() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
        b, h, w, c = x.shape
        x = x.view(b, h // 3, 3, w // 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, c)
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = merged((qkv[0] @ qkv[1].transpose(-2, -1) * 0.5).softmax(-1) @ qkv[2])
        y = self.proj(y).view(b, h // 3, w // 3, 3, 3, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)
        return self.head(y.roll((1, 1), (1, 2)).mean((1, 2)))

    qkv, proj = nn.Linear(8, 3 * INSIDE), nn.Linear(INSIDE, 8)
    return Net(forward, embed=nn.Conv2d(3, 8, 1), qkv=qkv, proj=proj, head=nn.Linear(8, 4), num_heads=HEADS)


@structure(TOKENS, units=HEADS + WIDTH)
def einsum() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        return self.out(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))

    return Net(forward, **projections(), head_dim=WIDTH)


# Modules of torch whose own code cannot have fewer heads take on another class that can.


@structure(TOKENS, units=2 + 3 + 6)
def torch_attention() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0])

    return Net(forward, attention=nn.MultiheadAttention(6, 2, batch_first=True), out=nn.Linear(6, 4))


@structure(TOKENS, units=2 + 3 + 16)
def torch_encoder_layer() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(6, 2, 16, batch_first=True), nn.Linear(6, 4))
