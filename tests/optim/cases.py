"""What tests of the sparse optimizers run over: options, small models, and torch's own optimizer beside each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import secateur._native as native
from secateur import Masks
from secateur.optim import SparseAdamW, SparseSGD

__all__ = [
    "BOTH",
    "CASES",
    "Case",
    "Net",
    "Pair",
    "assert_close",
    "assert_same",
    "assert_zero",
    "by_case",
    "by_kind",
    "by_path",
    "masks_of",
    "pair",
    "path",
]


@dataclass(frozen=True)
class Case:
    """One optimizer with one set of options."""

    name: str
    sparse: type[Optimizer]
    dense: type[Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, parameters: Iterable[Any], **more: Any) -> Optimizer:
        """The optimizer of kept weights."""
        return self.sparse(parameters, **copy.deepcopy(dict(self.options)), **more)  # type: ignore[call-arg]

    def make_torch(self, parameters: Iterable[Any]) -> Optimizer:
        """torch's own."""
        return self.dense(parameters, fused=True, **copy.deepcopy(dict(self.options)))  # type: ignore[call-arg]


def _cases() -> Iterator[Case]:
    adamw = {
        "": {},
        "no-decay": {"weight_decay": 0.0},
        "amsgrad": {"amsgrad": True},
        "maximize": {"maximize": True},
        "tensor-lr": {"lr": torch.tensor(0.02)},
        "betas": {"betas": (0.4, 0.7), "eps": 1e-3},
    }
    sgd = {
        "": {},
        "decay": {"weight_decay": 0.1},
        "momentum": {"momentum": 0.9},
        "dampening": {"momentum": 0.9, "dampening": 0.3},
        "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "maximize": {"momentum": 0.9, "maximize": True},
        "tensor-lr": {"momentum": 0.9, "lr": torch.tensor(0.05)},
    }
    for name, options in adamw.items():
        yield Case(f"SparseAdamW-{name}".strip("-"), SparseAdamW, torch.optim.AdamW, {"lr": 0.02, **options})
    for name, options in sgd.items():
        yield Case(f"SparseSGD-{name}".strip("-"), SparseSGD, torch.optim.SGD, {"lr": 0.05, **options})


CASES = tuple(_cases())
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
BOTH = tuple(case for case in CASES if case.name in ("SparseAdamW", "SparseSGD-momentum"))
by_kind = pytest.mark.parametrize("case", BOTH, ids=lambda case: case.name)
by_path = pytest.mark.parametrize("is_native", [True, False], ids=["native", "torch"])


@contextmanager
def path(is_native: bool) -> Iterator[None]:
    """With the library, or with pure torch."""
    if is_native:
        assert native.library() is not None
        yield
    else:
        with patch.object(native, "library", return_value=None):
            yield


class Net(nn.Module):
    """Weights whose sizes are no multiples of anything, of two and of four dims, and some without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 3, bias=False)  # a bias before a norm has gradients of rounding errors
        self.norm = nn.BatchNorm2d(7)
        self.first = nn.Linear(7 * 9, 33)
        self.last = nn.Linear(33, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        return self.last(torch.tanh(self.first(x.flatten(1))))


@dataclass
class Pair:
    """A model that is trained by a sparse optimizer, and its twin that is trained by torch's own."""

    case: Case
    model: nn.Module
    optimizer: Optimizer
    twin: nn.Module
    reference: Optimizer

    def step(self, *steps: int) -> None:
        """Make steps with both."""
        for number in steps:
            self.step_one(self.model, self.optimizer, number)
            self.step_one(self.twin, self.reference, number)

    def step_one(self, model: nn.Module, optimizer: Optimizer, number: int) -> None:
        """Make a step with one of them."""
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(number)
        dtype = next(model.parameters()).dtype
        inputs = torch.randn(8, 3, 5, 5, generator=generator).to(dtype)
        targets = torch.randn(8, 3, generator=generator).to(dtype)
        loss = (model(inputs) - targets).pow(2).mean()
        (-loss if self.case.options.get("maximize") else loss).backward()
        optimizer.step()

    def mask(self, density: float, seed: int = 0) -> None:
        """Put masks on both, or change those that they have."""
        for model, optimizer in ((self.model, self.optimizer), (self.twin, self.reference)):
            Masks.from_dict(model, masks_of(model, density, seed), optimizer)

    def hand_over(self) -> None:
        """Have torch's optimizer go on with the state of the sparse one."""
        self.reference.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        for group in self.reference.param_groups:
            group["fused"] = True

    def both(self, change: Callable[[nn.Module, Optimizer], object]) -> None:
        """Do something to both."""
        change(self.model, self.optimizer)
        change(self.twin, self.reference)


def masks_of(model: nn.Module, density: float, seed: int = 0) -> dict[str, Tensor]:
    """Random masks of all weights."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.rand(p.shape, generator=generator) < density for n, p in model.named_parameters() if p.dim() > 1}


def pair(case: Case, dtype: torch.dtype = torch.float32) -> Pair:
    """Two equal models with their optimizers, not masked and not stepped."""
    torch.manual_seed(0)
    model = Net().to(dtype)
    twin = copy.deepcopy(model)
    return Pair(case, model, case.make(model.parameters()), twin, case.make_torch(twin.parameters()))


ROUNDINGS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8}


def assert_close(both: Pair, *, roundings: float = 64.0) -> None:
    """Weights and state are equal but for some roundings, which later gradients pass on, and zero where masked."""
    masks = dict(Masks(both.model))
    for (name, parameter), (_, other) in zip(both.model.named_parameters(), both.twin.named_parameters(), strict=True):
        assert_equal_to(parameter.detach(), other.detach(), roundings)
        if name in masks:
            assert_zero(parameter.detach()[~masks[name]])
    found, expected = both.optimizer.state_dict()["state"], both.reference.state_dict()["state"]
    assert found.keys() == expected.keys()
    for index, (name, _) in enumerate(both.model.named_parameters()):
        mask = masks.get(name, torch.tensor(True))
        for key, value in expected.get(index, {}).items():
            kept = value if value.dim() == 0 else torch.where(mask, value, torch.zeros_like(value))
            assert_equal_to(found[index][key], kept, roundings)


def assert_equal_to(found: Tensor, expected: Tensor, roundings: float) -> None:
    """Two tensors are equal but for roundings, relative to the largest entry."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=roundings * ROUNDINGS[found.dtype] * largest)


def assert_zero(tensor: Tensor) -> None:
    """All entries are 0.0, without a sign."""
    assert (tensor == 0).all()
    assert not tensor.signbit().any()


def assert_same(found: Any, expected: Any) -> None:
    """Nested values are equal bit by bit."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    else:
        assert found == expected
