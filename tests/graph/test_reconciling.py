"""Sizes that the code computes: what would contradict a cut is tied, so that all that can go goes, exactly."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.graph.pretend import run_without
from secateur.shrink import plan_of


class ByShape(nn.Module):
    """Attention whose heads are as wide as the code computes them from the input's width."""

    def __init__(self, heads: int = 3, width: int = 12) -> None:
        super().__init__()
        self.num_heads = heads
        self.stem, self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(5))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, n, c = x.shape
        q, k, v = (
            p(x).reshape(b, n, self.num_heads, c // self.num_heads).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        y = (torch.softmax(q @ k.transpose(-1, -2), -1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.head(x + self.o(y))


class Ratio(nn.Module):
    """Parts of one projection that are as wide as a width times a ratio."""

    def __init__(self) -> None:
        super().__init__()
        self.key_dim, self.ratio = 4, 2
        self.stem, self.proj, self.o = nn.Linear(5, 6), nn.Linear(6, 16), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.proj(self.stem(x)).split([self.key_dim, self.key_dim, self.ratio * self.key_dim], dim=-1)
        return self.o(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)


class Paths(nn.Module):
    """Parts whose size is a quotient of two attributes of which one stays."""

    def __init__(self) -> None:
        super().__init__()
        self.in_channels, self.num_paths = 8, 2
        self.stem, self.convs, self.o = (
            nn.Linear(5, 8),
            nn.ModuleList(nn.Linear(4, 6) for _ in range(2)),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.stem(x).split(self.in_channels // self.num_paths, -1)
        return self.o(sum((conv(part) for conv, part in zip(self.convs, parts, strict=True)), torch.zeros(())))


class Window(nn.Module):
    """A number of positions that never changes, computed from attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.window = (2, 3)
        self.stem, self.o = nn.Linear(5, 8), nn.Linear(8, 3)
        self.table = nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.stem(x) + self.table.view(self.window[0] * self.window[1], -1))


INPUTS: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    ByShape: (2, 5, 12),
    Ratio: (2, 4, 5),
    Paths: (2, 4, 5),
    Window: (2, 6, 5),
}


@pytest.mark.parametrize("build", INPUTS)
def test_computed_sizes_follow_exactly(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build().double().eval(), torch.randn(INPUTS[build], dtype=torch.float64)
    coupling = analyze(model, x)
    assert coupling.num_units >= 3
    for seed in range(6):
        draw = random.Random(seed)
        units = [
            unit
            for group in coupling.groups
            for unit in draw.sample(group.units, min(len(group.units) - 1, draw.randint(0, len(group.units) // 2 + 1)))
        ]
        plan = plan_of(model, coupling, units)
        assert sum(group.before - group.after for group in plan.groups) == len(units)  # nothing was refused
        smaller = plan.apply_(copy.deepcopy(model))
        torch.testing.assert_close(smaller(x), run_without(model, x, coupling, units).result)


def test_what_cannot_be_made_to_fit_is_kept_with_the_place_in_the_code() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 6
            self.a, self.b = nn.Linear(4, 6), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(torch.cat([x, torch.zeros(len(x), self.width * self.width - 30)], -1))

    coupling = analyze(Odd(), torch.randn(3, 4))
    assert {group.name for group in coupling.groups} == {"a.weight[0]"}
    assert [(kept.positions, kept.why) for kept in coupling.kept if (kept.name, kept.dim) == ("b.weight", 1)] == [
        (6, "its size is computed in the code (zeros) in a way that does not follow")
    ]
