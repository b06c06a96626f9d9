"""The last step of a cut: a smaller model that does something else than was foreseen is undone, with its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur._errors import UnsupportedError
from secateur.graph import analyze
from secateur.shrink import plan_of, shrink_
from tests.shrink.models import is_unchanged, state_of


class Scaled(nn.Module):
    """A hidden layer whose code computes a scale from its size, in a way that nothing sees."""

    def __init__(self, scale: Callable[[Scaled], float]) -> None:
        super().__init__()
        self.width, self.scale = 12, scale
        self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).view(len(x), self.width) * self.scale(self))


HIDDEN: dict[str, Callable[[Scaled], float]] = {
    "a float on the left": lambda m: 1.0 / m.width,
    "int()": lambda m: int(m.width) ** -0.5,
    "text": lambda m: float(f"{m.width}") / 7,
    "len(weight)": lambda m: len(m.a.weight) ** -0.5,
}


@pytest.mark.parametrize("how", HIDDEN)
def test_size_that_became_a_value_unseen_is_refused_and_everything_undone(how: str) -> None:
    model, x = Scaled(HIDDEN[how]).double(), torch.randn(4, 5, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    before, moments = state_of(model), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(UnsupportedError, match=r"a size became a value.*Nothing has been changed"):
        shrink_(model, x, sparsity=0.5, optimizer=optimizer)
    assert is_unchanged(model, before)
    assert model.width == 12
    for key, entry in optimizer.state_dict()["state"].items():
        assert all(torch.equal(entry[name], moments["state"][key][name]) for name in entry)
    optimizer.step()


def test_model_that_does_not_run_is_undone() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            if str(tuple(x.shape)) != "(4, 12)":
                raise RuntimeError("twelve were expected")
            return self.b(x)

    model, x = Sized(), torch.randn(4, 5)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match="does not run: twelve were expected"):
        plan_of(model, analyze(model, x), [0]).apply_(model, tried_on=x)
    assert is_unchanged(model, before)


def test_scalars_read_off_tensors_are_no_sizes() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x / x.abs().max().item())

    model = Normed()
    shrink_(model, torch.randn(4, 5), sparsity=0.5)
    assert model.a.out_features == 6


def test_running_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)).train()
    x = torch.randn(6, 5)
    statistics = model[1].running_mean.clone()
    state = torch.get_rng_state()
    plan = shrink_(model, x, sparsity=0.5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[1].running_mean, statistics[plan.keep["1.running_mean"][0]])
    assert all(parameter.grad is None for parameter in model.parameters())


class LegacyScale(nn.Module):
    """Makes a tensor of a size by a constructor of old, which no mode of torch sees."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.width = 2, 8
        self.stem, self.head = nn.Linear(4, 16), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).view(-1, self.heads, self.width)
        return self.head(torch.relu(y / torch.IntTensor([self.width])[0].to(y.dtype).sqrt()).sum(-1))


def test_a_size_in_a_tensor_made_by_an_old_constructor_is_refused_and_undone() -> None:
    model, x = LegacyScale().double(), torch.randn(2, 4, dtype=torch.float64)
    before = model.state_dict()
    with pytest.raises(UnsupportedError, match=r"a size became a value, aten.lift_fresh: \[8.0\] -> \[4.0\]"):
        shrink_(model, x, sparsity=0.5)
    assert model.width == 8
    assert all(tensor.shape == before[name].shape for name, tensor in model.state_dict().items())
