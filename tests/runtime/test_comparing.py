"""Two models side by side: how far apart, how large, and left as they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.runtime import comparing
from secateur.runtime.comparing import difference, own, run_seconds, seconds_in_place
from secateur.runtime.profile_times import Latency

X = torch.ones(1)
INF, NAN = math.inf, math.nan


class Returns(nn.Module):
    """Gives what it was made with."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.values = values

    def forward(self, x: Tensor) -> Any:
        return self.values[0] if len(self.values) == 1 else self.values


def apart(one: Any, other: Any) -> float:
    return difference(Returns(one), Returns(other), [X])


def numbers(*values: float) -> Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        ((1.0, -4.0), (1.0, -4.0), 0),
        ((1.0, -4.0), (1.5, -4.0), 0.125),
        ((0.0, 0.0), (0.0, 0.0), 0),
        ((0.0, 0.0), (0.0, 1e-9), INF),
        ((NAN, 2.0), (NAN, 2.0), 0),
        ((INF, 2.0), (INF, 1.0), 0.5),
        ((INF, 2.0), (-INF, 2.0), INF),
        ((1.0, 2.0), (NAN, 2.0), INF),
        ((NAN, 2.0), (1.0, 2.0), INF),
        ((1.0, 2.0), (INF, 2.0), INF),
        ((INF, NAN), (INF, 1.0), INF),
        ((), (), 0),
    ],
    ids=str,
)
def test_difference_is_relative_to_the_largest_output(
    one: tuple[float, ...], other: tuple[float, ...], error: float
) -> None:
    assert apart(numbers(*one), numbers(*other)) == error


def test_difference_is_the_worst_of_all_outputs_and_examples() -> None:
    one = Returns({"a": numbers(1.0), "b": [numbers(10.0), "text", 3]}, torch.tensor([True]))
    other = Returns({"a": numbers(1.25), "b": [numbers(11.0), "text", 3]}, torch.tensor([False]))
    assert difference(one, other, [X]) == 0.25
    scale, double = nn.Identity(), Scale()
    assert difference(scale, double, [numbers(0.0), numbers(3.0)]) == 1


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_outputs_of_another_shape_differ_without_bound() -> None:
    assert apart(torch.ones(2), torch.ones(1, 2)) == INF


def test_difference_is_computed_in_double_precision() -> None:
    assert apart(numbers(3e38, 1.0), numbers(-3e38, 1.0)) == pytest.approx(2)
    assert apart(numbers(1.0).half(), numbers(1.5).half()) == 0.5


class Noisy(nn.Module):
    """Adds noise, counts its calls in a buffer and an attribute, and keeps its last input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.number, self.last = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.number += 1
        self.last = x
        return self.layer(x) + torch.randn(3)


COMPARED: dict[str, Callable[[nn.Module, nn.Module, Tensor], object]] = {
    "difference": lambda one, other, x: difference(one, other, [x]),
    "run_seconds": lambda one, other, x: run_seconds(one, other, [x]),
    "seconds_in_place": lambda one, other, x: seconds_in_place(one, ["layer"], [x]),
}


@pytest.mark.parametrize("what", COMPARED)
def test_models_and_random_state_are_left_as_they_were(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_SECONDS", 0)
    one, other, x = Noisy().eval(), Noisy().eval(), torch.randn(2, 3)
    before = torch.get_rng_state()
    COMPARED[what](one, other, x)
    assert torch.equal(torch.get_rng_state(), before)
    for model in (one, other):
        assert (model.number, model.last, float(model.calls)) == (0, None, 0)
        assert not model.layer._forward_hooks
        assert not model.layer._forward_pre_hooks
        assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_inputs_get_memory_of_their_own_and_what_was_one_stays_one() -> None:
    x, y = torch.randn(2, requires_grad=True), torch.randn(3)
    found = own([x, {"a": x, "b": (y * 2, "text")}, 5])
    assert found[0] is found[1]["a"]
    assert torch.equal(found[0], x)
    assert found[0].data_ptr() != x.data_ptr()
    assert found[1]["b"][1:] == ("text",)
    assert own(run_seconds) is run_seconds


def test_models_that_write_into_their_inputs_are_compared_on_the_same_ones() -> None:
    x = torch.ones(3)
    assert difference(Adds(), Adds(), [x]) == 0
    assert torch.equal(x, torch.ones(3))


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


def test_noise_is_the_same_for_both() -> None:
    one = Noisy().eval()
    assert difference(one, one, [torch.randn(2, 3)]) == 0


def test_seconds_are_those_of_all_examples_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def called_once(functions: Sequence[Callable[[], object]], seconds: float) -> list[Latency]:
        for function in functions:
            function()
        return [Latency(9e3, (1e3 * i, 9e3), 1) for i, _ in enumerate(functions, 1)]

    monkeypatch.setattr(comparing, "latencies", called_once)
    fast = Sees(lambda x: seen.append(x))
    assert run_seconds(Sees(lambda x: None), fast, [numbers(1.0), (numbers(2.0),), {"x": numbers(3.0)}]) == {
        "dense": 1.0,
        "fast": 2.0,
    }
    assert [float(x) for x in seen] == [1, 2, 3]


class Sees(nn.Module):
    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.see = see

    def forward(self, x: Tensor) -> None:
        self.see(x)


def test_seconds_in_place_are_those_of_the_layers_that_are_there_and_run() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].idle = nn.ReLU()
    found = seconds_in_place(model, ["0", "0.idle", "absent"], [torch.ones(1, 3)])
    assert found.keys() == {"0"}
    assert found["0"] > 0
