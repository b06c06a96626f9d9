"""What the tests of tickets train, and how, in plain torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.masks.oracles import bits


class Normed(nn.Module):
    """A convolution, a BatchNorm, a head; and a buffer that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def train(model: nn.Module, optimizer: Optimizer, steps: Iterable[int]) -> None:
    """Take some steps; each has a batch of its own, the same in every call."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 2, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def values(model: nn.Module) -> dict[str, bytes]:
    """The bits of all parameters and buffers of a state_dict."""
    return {name: bits(tensor) for name, tensor in model.state_dict().items()}
