"""How each method is made in tests, and a model for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secateur.dst import METHODS, SparseTraining

EVERY, END = 2, 9
"""Steps from one change to the next, and the step after which there is none."""


def make(method: str, model: nn.Module, optimizer: Any = None, *, sparsity: float = 0.5, **options: Any) -> Any:
    """A method that changes masks every other step."""
    times = {} if method == "static" else {"every": EVERY, "end_step": END}
    found: SparseTraining = METHODS[method](model, optimizer, **{"sparsity": sparsity, **times, **options})
    return found


def changes(method: str) -> list[int]:
    """The steps after which a method that `make` made changes its masks."""
    return [] if method == "static" else [2, 4, 6, 8]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 6)).pow(2).mean().backward()
    optimizer.step()


def flat(training: SparseTraining) -> torch.Tensor:
    return torch.cat([mask.flatten() for mask in training.masks.values()])
