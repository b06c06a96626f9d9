"""Models, losses and plain oracles for the tests of scores that run a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.masks.oracles import bits, snapshot

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Any], Tensor]


def net(*sizes: int, seed: int = 0) -> nn.Sequential:
    """Linear layers and tanh, in double precision, so that all is smooth."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for one, next_one in pairwise(sizes):
        layers += [nn.Linear(one, next_one), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


def batches(*sizes: int, inputs: int = 3, outputs: int = 2, seed: int = 1) -> list[Batch]:
    """A batch of so many examples for each of the sizes."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(size, inputs), draw(size, outputs)) for size in sizes]


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def weights_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of two or more dims, which is what is scored in these models."""
    return {name: p for name, p in model.named_parameters() if p.dim() > 1}


def by_differences(function: Callable[[], float], weight: Tensor, step: float = 1e-5) -> Tensor:
    """The derivative of a number by each entry of a tensor that it depends on, by central differences."""
    slopes = torch.zeros_like(weight, requires_grad=False)
    flat, data = slopes.view(-1), weight.detach().view(-1)
    for entry in range(data.numel()):
        value = data[entry].clone()
        data[entry] = value + step
        above = function()
        data[entry] = value - step
        below = function()
        data[entry] = value
        flat[entry] = (above - below) / (2 * step)
    return slopes


def mean_loss(model: nn.Module, loss_fn: Loss, given: Sequence[Any]) -> float:
    """The mean of the loss over batches."""
    with torch.no_grad():
        return sum(float(loss_fn(model, batch)) for batch in given) / len(given)


class Restless(nn.Module):
    """A model of which a run changes whatever it can: statistics, random states, attributes; in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.drop(x.mean((-1, -2))) + random.random() + float(np.random.rand()))


def restless_loss(model: nn.Module, x: Tensor) -> Tensor:
    """A loss that changes flags and random states, and draws noise."""
    inner = getattr(model, "_orig_mod", model)
    loss = model(x + torch.randn_like(x)).square().mean()
    inner.norm.eval()
    return loss


def whole_state(model: nn.Module) -> Any:
    """All that a score must leave as it was: weights, gradients as objects, masks, buffers, flags, hooks, attributes,
    random states."""
    kind, keys, position, *rest = np.random.get_state()
    return (
        snapshot(model),
        [id(p.grad) for p in model.parameters()],
        [(name, id(buffer), bits(buffer)) for name, buffer in model.named_buffers()],
        [(module.training, vars(module).get("calls")) for module in model.modules()],
        [
            [len(hooks) for key, hooks in vars(module).items() if key.endswith(("_hooks", "_with_kwargs"))]
            for module in model.modules()
        ],
        bytes(torch.get_rng_state().numpy()),
        random.getstate(),
        (kind, keys.tobytes(), position, *rest),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )
