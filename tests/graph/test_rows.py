"""Which columns of heads need only be as many in every head, and which must be the same ones everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.graph.coupling import Coupling, Group
from secateur.graph.rows import rows_of

Code = Callable[["Heads", Tensor, Tensor, Tensor], Tensor]


class Heads(nn.Module):
    """Attention up to the mixing of values; what is done to queries, keys and values is the test's."""

    def __init__(self, code: Code, heads: int = 3, width: int = 4, groups: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.groups = heads, width, groups or heads
        self.q, self.k, self.v = (nn.Linear(8, n * width) for n in (heads, self.groups, self.groups))
        self.o, self.mix = nn.Linear(heads * width, 5), nn.Parameter(torch.randn(heads, heads))
        self.scale, self.norm = nn.Parameter(torch.randn(width)), nn.LayerNorm(width)
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            p(x).view(b, n, m, self.head_dim).transpose(1, 2)
            for p, m in ((self.q, self.num_heads), (self.k, self.groups), (self.v, self.groups))
        )
        y = self.code(self, q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim))


def plain(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def grouped(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, d = q.shape
    k, v = (t[:, :, None].expand(b, self.groups, h // self.groups, n, d).reshape(b, h, n, d) for t in (k, v))
    return plain(self, q, k, v)


def scaled(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, q * self.scale, k, v)


def normed(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, self.norm(q), k, v)


def talking(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhnd,hg->bgnd", plain(self, q, k, v), self.mix)


def summed(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, q, k, v) * v.sum(1, keepdim=True)


def rolled(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, q, k, v) + v.roll(1, 1)


def soft_over_heads(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, q, k, v.softmax(1))


def running(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(self, q, k, v.cumsum(1))


def all_pairs(self: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhnd,bgmd->bhnm", q, k) @ v


def columns(coupling: Coupling) -> list[Group]:
    return [group for group in coupling.groups if group.kind == "head dims"]


@pytest.mark.parametrize(("code", "groups", "rows"), [(plain, 6, 6), (grouped, 2, 2)])
def test_columns_of_attention_need_only_be_as_many_in_every_head(code: Code, groups: int, rows: int) -> None:
    coupling = analyze(Heads(code, heads=6, groups=groups), torch.randn(2, 5, 8))
    group = next(group for group in columns(coupling) if len(group.units) == 4)
    found = rows_of(coupling, group)
    assert found is not None
    assert len(found.rows) == rows
    assert set(found.units) == set(group.units)


@pytest.mark.parametrize("code", [scaled, normed, talking, summed, rolled, soft_over_heads, running, all_pairs])
def test_columns_that_meet_those_of_other_heads_are_the_same_everywhere(code: Code) -> None:
    coupling = analyze(Heads(code), torch.randn(2, 5, 8))
    assert columns(coupling)
    assert all(rows_of(coupling, group) is None for group in columns(coupling))


@pytest.mark.parametrize("code", [lambda self, q, k, v: plain(self, q.softmax(-1), torch.relu(k), v)])
def test_what_is_done_within_a_head_ties_no_columns(code: Code) -> None:
    coupling = analyze(Heads(code), torch.randn(2, 5, 8))
    assert all(rows_of(coupling, group) is not None for group in columns(coupling))


def test_channels_and_neurons_have_no_rows() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(16, 2))
    coupling = analyze(model, torch.randn(2, 3, 2, 2))
    assert len(coupling.groups) == 2
    assert all(rows_of(coupling, group) is None for group in coupling.groups)
