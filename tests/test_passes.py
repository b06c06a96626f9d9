"""Running a user's model and leaving no trace; which batches are taken; what is a loss."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur._passes import call_with, in_double, loss_on, some_of, undisturbed, untouched


def draws() -> list[float]:
    """The next number of each global random state."""
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_undisturbed_puts_every_random_state_back() -> None:
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draws()
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    with undisturbed(nn.ReLU()):
        draws()
    assert draws() == expected


def test_untouched_has_no_gradients_inside_and_puts_them_back_as_objects() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model(torch.ones(1, 2)).sum().backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]

    def meddle() -> None:
        with untouched(model):
            assert all(p.grad is None for p in model.parameters())
            with torch.enable_grad():
                model(torch.ones(1, 2)).sum().backward()
            model.eval()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        meddle()
    assert all(
        p.grad is object_ and torch.equal(p.grad, values)
        for p, (object_, values) in zip(model.parameters(), before, strict=True)
    )
    assert all(module.training for module in model.modules())


def test_untouched_puts_back_which_parameters_are_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    with untouched(model):
        model[0].requires_grad_(False)
        model[1].requires_grad_(True)
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.tensor(3.0), 3.0),
        ((torch.tensor(3.0), 2), 6.0),
        ({"x": torch.tensor(3.0), "times": 4}, 12.0),
        (lambda model: model(torch.tensor(5.0)), 5.0),
    ],
)
def test_model_is_called_with_inputs_of_any_form(inputs: Any, expected: float) -> None:
    class Times(nn.Module):
        def forward(self, x: Tensor, times: int = 1) -> Tensor:
            return x * times

    assert call_with(Times(), inputs) == expected


def test_tensors_are_in_double_precision_until_the_block_ends() -> None:
    def fail() -> None:
        with in_double():
            assert torch.zeros(1).dtype == torch.float64
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert torch.zeros(1).dtype == torch.float32


@pytest.mark.parametrize(("steps", "taken"), [(None, [1, 2, 3]), (2, [1, 2]), (9, [1, 2, 3])])
@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_batches_are_taken_from_the_beginning(make: Any, steps: int | None, taken: list[int]) -> None:
    assert list(some_of(make([1, 2, 3]), steps)) == taken


@pytest.mark.parametrize("batches", [[], (), iter([])])
def test_no_batch_is_refused_with_what_was_given(batches: Iterable[Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"no batch to score by(.|\n)*batches: {type(batches).__name__}"):
        list(some_of(batches, None))
    with pytest.raises(InvalidInputError, match=r"no batch to score by(.|\n)*steps: 0"):
        list(some_of([1], 0))


def test_loss_has_its_graph_also_under_no_grad() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        assert loss_on(layer, lambda m, x: m(x).sum(), torch.ones(1, 2)).grad_fn is not None


def test_buffers_of_all_kinds_have_their_values_again() -> None:
    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, buffer in {
                "a": torch.ones(2, 3),
                "b": torch.full((4,), torch.nan),
                "count": torch.zeros((), dtype=torch.int64),
                "steps": torch.arange(3),
                "empty": torch.empty(0),
                "flags": torch.ones(2, dtype=torch.bool),
                "sparse": torch.eye(3).to_sparse(),
            }.items():
                self.register_buffer(name, buffer)

        def forward(self) -> None:
            self.a.t_()  # another shape
            self.a.add_(1)
            self.b.fill_(0)
            self.count += 1
            self.steps.mul_(2)
            self.flags.logical_not_()

    model = Busy()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with undisturbed(model):
        model()
    for name, buffer in model.named_buffers():
        if name != "a":  # whose shape is its own to give back
            torch.testing.assert_close(buffer.to_dense(), before[name].to_dense(), rtol=0, atol=0, equal_nan=True)
