"""Models and one check for the tests of shrinking."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from secateur.graph.capture import tensors_in
from secateur.shrink import ShrinkPlan


def randomized(model: nn.Module) -> nn.Module:
    """The model in double precision and evaluation mode, with no parameter or statistic at a special value."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return model


def equals_the_zeroed_model(model: nn.Module, plan: ShrinkPlan, inputs: Any) -> nn.Module:
    """Check that a copy with the plan applied equals a copy with the same positions at zero; the smaller copy."""
    run = inputs if callable(inputs) else lambda m: m(*inputs) if isinstance(inputs, tuple) else m(inputs)
    before = [tensor.detach().clone() for tensor in tensors_in(run(model))]
    zeroed = copy.deepcopy(model)
    tensors = {**dict(zeroed.named_parameters()), **dict(zeroed.named_buffers())}
    with torch.no_grad():
        for name, dims in plan.keep.items():
            for dim, keep in dims.items():
                gone = sorted(set(range(tensors[name].shape[dim])) - set(keep.tolist()))
                tensors[name].index_fill_(dim, torch.tensor(gone), 0)
    expected = tensors_in(run(zeroed))
    moved = [(a - b).detach().abs().max().item() for a, b in zip(before, expected, strict=True)]
    assert max(moved) > 1e-3, "zeroing did nothing"
    smaller = plan.apply_(copy.deepcopy(model))
    found = tensors_in(run(smaller))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * max(1.0, other.detach().abs().max().item()))
    return smaller


def state_of(model: nn.Module) -> dict[str, tuple[int, Tensor, bool]]:
    """Identity, values and flag of every parameter and buffer."""
    return {
        name: (id(tensor), tensor.detach().clone(), tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }


def is_unchanged(model: nn.Module, before: dict[str, tuple[int, Tensor, bool]]) -> bool:
    """Whether a model is as it was when `state_of` was called."""
    now = state_of(model)
    return now.keys() == before.keys() and all(
        now[n][0] == before[n][0] and torch.equal(now[n][1], before[n][1]) and now[n][2] == before[n][2] for n in now
    )


class Attention(nn.Module):
    """Separate projections, heads given by attributes."""

    def __init__(self, width: int = 12, heads: int = 3, scale: Callable[[Attention], float] | None = None) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = heads, width // heads, scale
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.scale is None:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) * self.scale(self), -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim))


class SmallCNN(nn.Module):
    """Convolution, BatchNorm, residual, pooling, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.a, self.b = nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 8, 3, padding=1)
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.b(torch.relu(self.a(x)))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))
