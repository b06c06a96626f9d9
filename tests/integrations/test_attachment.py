"""What all trainers have in common: the methods of one model, without any trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.swa_utils import AveragedModel

from secateur import InvalidInputError, Masks, RigL, prune_, shrink_
from secateur.integrations.attachment import Attachment, check_methods
from tests.integrations.trainings import METHODS, X, Y, build


def steps(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    for _ in range(number):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


class Watched:
    """A part of one's own."""

    def __init__(self, model: nn.Module, optimizer: Any = None, ema: Any = None) -> None:
        self.called = {"model": model, "optimizer": optimizer, "ema": ema}
        self.num_steps = 0

    def step(self) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]


def test_methods_are_called_with_what_they_take() -> None:
    model = build()
    optimizer, other, average = SGD(model[0].parameters()), SGD(model[2].parameters()), AveragedModel(model)
    for optimizers, passed in (([optimizer], optimizer), ([optimizer, other], [optimizer, other])):
        attachment = Attachment(model, [Watched])
        attachment.begin(optimizers, [average])
        assert attachment.parts[0].called == {"model": model, "optimizer": passed, "ema": [average]}


def test_optimizers_of_other_models_are_left_out() -> None:
    model = build()
    optimizer = SGD(model.parameters())
    attachment = Attachment(model, [Watched])
    attachment.begin([SGD(build().parameters()), optimizer])
    assert attachment.parts[0].called["optimizer"] is optimizer


def test_steps_of_the_first_optimizer_are_told_of_once() -> None:
    model = build()
    optimizer, other = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    attachment = Attachment(model, [Watched])
    attachment.begin([optimizer, other])
    steps(model, other, 2)
    steps(model, optimizer, 3)
    assert attachment.parts[0].num_steps == 0
    assert [attachment.after_batch(), attachment.after_batch()] == [False, False]
    assert attachment.parts[0].num_steps == 3


def test_steps_do_not_count_after_the_end_nor_twice_after_a_second_beginning() -> None:
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    attachment = Attachment(model, [Watched])
    for expected in (1, 2):
        attachment.begin([optimizer])
        steps(model, optimizer, 1)
        attachment.after_batch()
        attachment.end()
        steps(model, optimizer, 1)
        attachment.after_batch()
        assert attachment.parts[0].num_steps == expected


def test_beginning_again_without_an_end_counts_no_step_twice() -> None:
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    attachment = Attachment(model, [Watched])
    attachment.begin([optimizer])
    attachment.begin([optimizer])
    steps(model, optimizer, 1)
    attachment.after_batch()
    assert attachment.parts[0].num_steps == 1


def test_step_that_a_scaler_has_a_fused_optimizer_skip_does_not_count() -> None:
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    attachment = Attachment(model, [Watched])
    attachment.begin([optimizer])
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
    steps(model, optimizer, 1)
    optimizer.found_inf = torch.zeros(())
    steps(model, optimizer, 1)
    attachment.after_batch()
    assert attachment.parts[0].num_steps == 1


def test_cut_is_told() -> None:
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    attachment = Attachment(model, METHODS["shrink"])
    attachment.begin([optimizer])
    told = []
    for _ in range(4):
        steps(model, optimizer, 1)
        told.append(attachment.after_batch())
    assert told == [False, False, True, False]


def test_what_has_no_state_is_not_called_again() -> None:
    calls = []

    def method(model: nn.Module, optimizer: Any) -> None:
        calls.append(model)
        shrink_(model, X[:4], sparsity=0.5, optimizer=optimizer)
        prune_(model, optimizer, sparsity=0.5)

    model, fresh = build(), build()
    attachment, other = Attachment(model, [method]), Attachment(fresh, [method])
    attachment.begin([SGD(model.parameters())])
    other.restore_(attachment.state_dict())
    other.begin([SGD(fresh.parameters())])
    assert len(calls) == 1
    assert fresh[0].out_features == 12
    assert Masks(fresh) == Masks(model)
    again = build()
    third = Attachment(again, [method])
    third.restore_(other.state_dict())
    assert Masks(again) == Masks(model)


def test_state_that_waits_for_its_method_is_saved_again() -> None:
    model = build()
    attachment = Attachment(model, METHODS["shrink"])
    attachment.begin([SGD(model.parameters())])
    other = Attachment(build(), METHODS["shrink"])
    other.restore_(attachment.state_dict())
    assert other.state_dict()["parts"] == attachment.state_dict()["parts"]


def test_masks_of_an_average_follow() -> None:
    model = build()
    average = AveragedModel(model)
    attachment = Attachment(model, [partial(prune_, sparsity=0.5)])
    attachment.begin([SGD(model.parameters())], [average])
    assert all(not average.module.get_parameter(name).detach()[~mask].any() for name, mask in Masks(model).items())


def test_function_of_another_result_is_refused() -> None:
    model = build()
    attachment = Attachment(model, METHODS["RigL"])
    attachment.begin([SGD(model.parameters())])
    other = Attachment(build(), [lambda model, optimizer: Watched(model)])
    with pytest.raises(InvalidInputError, match=r"(?s)other methods.*checkpoint: RigL    here: Watched    method: 0"):
        other.restore_(attachment.state_dict())


def test_state_of_another_result_than_there_is_already_is_refused_before_anything_changes() -> None:
    model, other = build(), build()
    attachment = Attachment(model, METHODS["RigL"])
    attachment.begin([SGD(model.parameters())])
    present = Attachment(other, [lambda model, optimizer: Watched(model)])
    present.begin([SGD(other.parameters())])
    with pytest.raises(InvalidInputError, match="other methods"):
        present.restore_(attachment.state_dict())
    assert not Masks(other)


@pytest.mark.parametrize("state", [{}, {"parts": []}, 3], ids=str)
def test_other_states_are_refused(state: Any) -> None:
    with pytest.raises(InvalidInputError, match="no state of Pruning"):
        Attachment(build(), ()).restore_(state)


def test_what_cannot_be_called_is_no_method() -> None:
    with pytest.raises(InvalidInputError, match="takes functions of the model and the optimizer, not a float"):
        check_methods([0.5])
    assert check_methods([RigL]) == (RigL,)
