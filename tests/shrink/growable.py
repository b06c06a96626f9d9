"""Models that can grow, and what they are when every group has grown by half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.shrink.models import Attention, SmallCNN, randomized


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Called(nn.Module):
    """A model from its parts and the code of its forward."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.code = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5), nn.ELU(), nn.Linear(5, 2))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.ELU(), nn.Conv2d(8, 12, 3, groups=4), nn.ELU(), nn.Conv2d(12, 2, 1))


def depthwise() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ELU(), nn.Conv2d(8, 8, 3, padding=1, groups=8))
    return nn.Sequential(*layers, nn.BatchNorm2d(8, affine=False), nn.ELU(), nn.Conv2d(8, 2, 1))


def transposed() -> nn.Module:
    layers = (nn.Conv2d(3, 4, 1), nn.ELU(), nn.ConvTranspose2d(4, 6, 2, stride=2), nn.PReLU(6))
    return nn.Sequential(*layers, nn.ConvTranspose2d(6, 6, 3, groups=3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 196, 2))


def shuffled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 1), nn.PixelShuffle(2), nn.ELU(), nn.Conv2d(4, 2, 1))


def joined() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.c(torch.cat([a, torch.tanh(a), b], 1))

    return Called(forward, a=nn.Linear(4, 3), b=nn.Linear(4, 5), c=nn.Linear(11, 2))


def gated() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.both(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(one) * other)

    return Called(forward, both=nn.Linear(4, 12), down=nn.Linear(6, 2))


def squeezed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.c(x)
        return self.o(x * torch.sigmoid(self.up(torch.tanh(self.down(x.mean((2, 3))))))[:, :, None, None])

    parts = {"c": nn.Conv2d(3, 8, 3), "down": nn.Linear(8, 3), "up": nn.Linear(3, 8), "o": nn.Conv2d(8, 2, 1)}
    return Called(forward, **parts)


def raw() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return (torch.tanh(x @ self.first + self.shift) * self.scale) @ self.second

    parts = {"first": (4, 6), "shift": (6,), "scale": (1, 6), "second": (6, 2)}
    return Called(forward, **{name: nn.Parameter(torch.randn(shape)) for name, shape in parts.items()})


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    layer = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True)
    return Called(lambda self, x: self.o(self.layer(x)[0]), layer=layer, o=nn.Linear(10, 2))


def cell() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.o(h)

    return Called(forward, cell=nn.GRUCell(4, 5), o=nn.Linear(5, 2))


def self_attention() -> nn.Module:
    layer = nn.MultiheadAttention(12, 3, batch_first=True)
    return Called(lambda self, x: self.layer(x, x, x, need_weights=False)[0], layer=layer)


def grouped_query() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, 4).transpose(1, 2)
        k, v = (p(x).view(b, n, self.kv, 4).transpose(1, 2) for p in (self.k, self.v))
        k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))

    parts = {"q": nn.Linear(8, 16), "k": nn.Linear(8, 8), "v": nn.Linear(8, 8), "o": nn.Linear(16, 8)}
    return Called(forward, **parts, heads=4, kv=2)


def tied() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        e = x.softmax(-1) @ self.embed.weight
        return self.head(e + self.down(torch.tanh(self.up(e))))

    embed, head = nn.Embedding(4, 6), nn.Linear(6, 4, bias=False)
    head.weight = embed.weight
    return Called(forward, embed=embed, head=head, up=nn.Linear(6, 8), down=nn.Linear(8, 6))


IMAGE, TOKENS = (3, 3, 6, 6), (3, 5, 4)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, int]]] = {
    "mlp": (mlp, (8, 4), {"0.out_features": 9, "2.in_features": 9, "2.out_features": 8, "4.in_features": 8}),
    "cnn": (SmallCNN, (3, 3, 8, 8), {"stem.out_channels": 12, "norm.num_features": 12, "head.in_features": 48}),
    "grouped": (grouped, IMAGE, {"0.out_channels": 12, "2.groups": 4, "2.out_channels": 16, "4.in_channels": 16}),
    "depthwise": (depthwise, IMAGE, {"3.groups": 12, "3.in_channels": 12, "4.num_features": 12}),
    "transposed": (transposed, IMAGE, {"0.out_channels": 6, "2.in_channels": 6, "2.out_channels": 9, "4.groups": 3}),
    "shuffled": (shuffled, IMAGE, {"0.out_channels": 24, "3.in_channels": 6}),
    "joined": (joined, (8, 4), {"a.out_features": 4, "b.out_features": 8, "c.in_features": 16}),
    "gated": (gated, (8, 4), {"both.out_features": 18, "down.in_features": 9}),
    "squeezed": (squeezed, IMAGE, {"c.out_channels": 12, "down.out_features": 4, "up.out_features": 12}),
    "raw": (raw, (8, 4), {}),
    "tied": (tied, (8, 4), {"embed.embedding_dim": 9, "head.in_features": 9, "up.out_features": 12}),
    "LSTM": (lambda: recurrent(nn.LSTM), TOKENS, {"layer.hidden_size": 8, "layer.input_size": 4, "o.in_features": 16}),
    "GRU": (lambda: recurrent(nn.GRU), TOKENS, {"layer.hidden_size": 8, "o.in_features": 16}),
    "GRU cell": (cell, TOKENS, {"cell.hidden_size": 8, "o.in_features": 8}),
    "heads": (Attention, (3, 5, 12), {"num_heads": 4, "head_dim": 4, "q.out_features": 16, "o.in_features": 16}),
    "multihead": (self_attention, (3, 5, 12), {"layer.num_heads": 4, "layer.embed_dim": 12, "layer.head_dim": 4}),
    "grouped query": (grouped_query, (3, 5, 8), {"heads": 6, "kv": 3, "q.out_features": 24, "k.out_features": 12}),
}


def built(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    make, shape, _ = MODELS[name]
    return randomized(make()), double(*shape)
