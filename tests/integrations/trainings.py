"""What the tests of all three trainers train: small models, data, and one method of each kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateur import SET, GraNet, Masks, RigL, dst, prune_, schedules, shrink_schedule

WIDTH, CLASSES = 16, 4


class Attention(nn.Module):
    """Heads whose number the code stores, between two other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = 4, 4
        self.put = nn.Linear(4, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, 16) for _ in range(3))
        self.back = nn.Linear(16, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.put(x.unflatten(1, (4, 4)))
        b, n, _ = x.shape
        heads = (p(x).view(b, n, self.heads, self.size).transpose(1, 2) for p in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, scale=0.5).transpose(1, 2)
        x = x + self.back(mixed.reshape(b, n, self.heads * self.size) * self.scale)
        return self.out(x.mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, CLASSES),
    ),
    "attention": Attention,
}  # fmt: skip


def build(kind: str = "perceptron") -> nn.Module:
    """A model, always with the same weights."""
    torch.manual_seed(1)
    return MODELS[kind]()


def data() -> tuple[Tensor, Tensor]:
    """32 inputs, and labels that depend on them."""
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(2))
    return x, x[:, :CLASSES].argmax(1)


X, Y = data()
shrinking = partial(shrink_schedule, example_inputs=X[:4], begin_step=3, end_step=11, num_cuts=3)

METHODS: dict[str, tuple[Callable[..., Any], ...]] = {
    "masks": (partial(prune_, sparsity=0.7),),
    "RigL": (partial(RigL, sparsity=0.8, every=3, end_step=14),),
    "SET": (partial(SET, sparsity=0.8, every=3, end_step=14),),
    "GraNet": (partial(GraNet, sparsity=0.9, every=2, end_step=12),),
    "Gradual": (partial(dst.Gradual, sparsity=0.9, every=2, begin_step=2, end_step=12, curve=schedules.linear),),
    "SRSTE": (partial(dst.SRSTE, every=3),),
    "shrink": (partial(shrinking, final_sparsity=0.5),),
    "RigL and shrink": (partial(RigL, sparsity=0.6, every=3, end_step=14), partial(shrinking, final_sparsity=0.4)),
}
"""One of each kind; 16 steps are made of which the checkpoint that is resumed from comes after 8."""

MODELS_OF = dict.fromkeys(METHODS, ("perceptron",)) | {
    "RigL": ("perceptron", "convolution"),
    "shrink": ("perceptron", "convolution", "attention"),
}

CASES = [(name, kind) for name, kinds in MODELS_OF.items() for kind in kinds]


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All numbers of a training, to be compared bit by bit: weights, buffers, masks, momenta of kept weights, sizes."""
    found: dict[str, Any] = {name: each.detach().clone() for name, each in model.named_parameters()}
    found |= {name: each.clone() for name, each in model.named_buffers()}
    found |= {f"mask of {name}": mask for name, mask in Masks(model).items()}
    for name, parameter in model.named_parameters():
        kept = Masks(model).get(name, torch.ones(parameter.shape, dtype=torch.bool))
        for key, value in optimizer.state[parameter].items():
            found[f"{key} of {name}"] = value[kept] if value.shape == kept.shape and value.dim() else value
    found |= {f"{name} {key}": n for name, m in model.named_modules() for key, n in vars(m).items() if type(n) is int}
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare what `everything` has found."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        assert same, name
