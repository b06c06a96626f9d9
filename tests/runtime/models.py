"""Models for the tests of `compress`, what a masked dense one returns, and packed layers whatever the clock says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import _native
from secateur._passes import call_with
from secateur.runtime import choosing, comparing, compressing
from secateur.runtime.formats import CONV_FORMATS
from secateur.runtime.layers import SparseLayer
from secateur.runtime.recipe import CHANNELS_LAST
from tests.runtime.formats.references import KEPT_DENSE_CONV, masked

ALWAYS = -1e9
"""A margin with which the fastest sparse format is taken, however slow it is."""


def pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have layers packed whatever the clock says, and the clock asked as little as possible."""
    for module in (choosing, comparing):
        monkeypatch.setattr(module, "_SECONDS", 0)
    monkeypatch.setattr(comparing, "_RUNS", 1)
    measured = choosing._seconds
    monkeypatch.setattr(choosing, "_seconds", lambda runs, between: measured(runs, between) | {CHANNELS_LAST: 1e9})
    monkeypatch.setattr(compressing, "run_seconds", lambda dense, fast, examples: {"dense": 2.0, "fast": 1.0})
    if _native.library() is None:
        hide_native(monkeypatch)


def hide_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without the library; convolutions get a format that needs none."""
    monkeypatch.setattr(_native, "library", lambda: None)
    monkeypatch.setitem(CONV_FORMATS, "kept dense", KEPT_DENSE_CONV)


def masks_for(model: nn.Module, sparsity: float = 0.8, height: int = 1) -> dict[str, Tensor]:
    """A mask for each weight."""
    weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    return {name: masked(tuple(p.shape), sparsity, height, i) != 0 for i, (name, p) in enumerate(weights.items())}


def dense(model: nn.Module, masks: dict[str, Tensor] | None = None) -> nn.Module:
    """The model in evaluation mode with its masks multiplied in."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    for name, mask in (masks or {}).items():
        copied.get_parameter(name).mul_(mask)
    return copied


def outputs(model: nn.Module, inputs: Any) -> Any:
    """What a model returns, with the same noise at every call."""
    torch.manual_seed(5)
    with torch.no_grad():
        return call_with(model, inputs)


def packed(model: nn.Module) -> dict[str, str]:
    """The packed layers of a compressed model and their formats."""
    found = {name: m.format for name, m in model.named_modules() if isinstance(m, SparseLayer)}
    return {name.partition("model")[2].removeprefix("."): form for name, form in found.items()}


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Check that the block leaves a model as it was, to the bit."""
    before, mode = everything(model), [module.training for module in model.modules()]
    values = [tensor.detach().clone() for tensor in tensors(model)]
    yield
    assert everything(model) == before
    assert [module.training for module in model.modules()] == mode
    for tensor, value in zip(tensors(model), values, strict=True):
        torch.testing.assert_close(tensor.detach(), value, rtol=0, atol=0, equal_nan=True)


def tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def everything(model: nn.Module) -> list[Any]:
    """Identities of all parts, flags and hooks of a model."""
    parts: list[Any] = [
        (name, id(module), type(module), *map(len, hooks(module))) for name, module in model.named_modules()
    ]
    return parts + [(id(t), t.requires_grad, id(t.grad), t.data_ptr()) for t in tensors(model)]


def hooks(module: nn.Module) -> list[dict[Any, Any]]:
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._state_dict_hooks]


# Models ---------------------------------------------------------------------------------------------------------------


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 40, bias=False))


def cnn() -> nn.Sequential:
    """Convolutions of several kinds with their norms, whose statistics are not those of a fresh model."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8, affine=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2),
        nn.Conv2d(8, 6, (1, 3), padding="same"),
        nn.Flatten(),
        nn.Linear(6 * 9, 40),
        nn.BatchNorm1d(40),
    )
    return with_statistics(model)


def with_statistics(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias)
    return model


class Residual(nn.Module):
    """Two convolutions around which the input goes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        with_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        return self.relu(x + self.second(y) + y)


def encoder(**kwargs: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, **kwargs)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not kwargs)


class Translates(nn.Module):
    """Encoder and decoder, so that one attention has keys from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.both(source, target)


class Tied(nn.Module):
    """A language model whose head is its embedding; either may have been registered first."""

    def __init__(self, head_first: bool = False) -> None:
        super().__init__()
        if head_first:
            self.head = nn.Linear(32, 50, bias=False)
        self.emb, self.body = nn.Embedding(50, 32), nn.Linear(32, 32)
        if not head_first:
            self.head = nn.Linear(32, 50, bias=False)
        self.emb.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.emb(tokens)).relu())


class Uses(nn.Module):
    """Layers that are used in a way that is given."""

    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.idle = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 48)
        self.relu, self.run = nn.ReLU(), run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)
