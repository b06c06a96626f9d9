"""What no score that runs the model takes: an error that says so, and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from secateur import InvalidInputError, UnsupportedError
from tests.scores.models import batches, net, squared_error, whole_state
from tests.scores.tables import (
    BY_GRADIENT,
    RUNNING,
    Scored,
    every_data_score,
    every_gradient_score,
    every_score,
    every_start,
)


@every_data_score
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no batch to score by(.|\n)*list"),
        (iter([]), "no batch to score by(.|\n)*an iterator, which is empty once it has been used"),
        (DataLoader([]), "no batch to score by(.|\n)*DataLoader"),
        (torch.ones(2, 3), "batches are a list or a DataLoader(.|\n)*Tensor"),
        ({"x": torch.ones(2, 3)}, "batches are a list or a DataLoader(.|\n)*dict"),
        (None, "batches are a list or a DataLoader(.|\n)*NoneType"),
    ],
    ids=["empty", "used up", "empty loader", "tensor", "dict", "none"],
)
def test_what_gives_no_batch_is_refused(score: Scored, given: Any, message: str) -> None:
    model = net(3, 5, 2)
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=message):
        score(model, squared_error, given)
    assert whole_state(model) == before


@every_gradient_score
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, batch: m(batch[0]), r"must return a scalar(.|\n)*\(4, 2\)"),
        (lambda m, batch: squared_error(m, batch) * 1j, r"must return a scalar real(.|\n)*\(\) of torch\.complex128"),
        (lambda m, batch: squared_error(m, batch).item(), "must return a scalar(.|\n)*float"),
        (lambda m, batch: None, "must return a scalar(.|\n)*NoneType"),
        (lambda m, batch: batch[1].mean(), "depends on trained parameters"),
        (lambda m, batch: squared_error(m, batch).detach(), "depends on trained parameters"),
        (lambda m, batch: torch.ones(2, requires_grad=True).sum(), r"depends on none of the weights(.|\n)*0\.weight"),
        (lambda m, batch: m[0].bias.sum(), r"depends on none of the weights(.|\n)*0\.weight"),
    ],
    ids=["no scalar", "complex", "number", "nothing", "constant", "detached", "another leaf", "a bias"],
)
def test_loss_that_says_nothing_about_the_weights_is_refused(score: Scored, loss: Any, message: str) -> None:
    model = net(3, 5, 2)
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=message):
        score(model, loss, batches(4))
    assert whole_state(model) == before


def ran_backward(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss function that has done too much."""
    loss = squared_error(model, batch)
    loss.backward()
    return loss


def froze(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss function that trains the last layer only."""
    model[0].requires_grad_(False)
    return squared_error(model, batch)


@every_gradient_score
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (ran_backward, r"has run backward\(\) itself(.|\n)*return the loss as it is"),
        (froze, r"has frozen '0\.weight'(.|\n)*include"),
    ],
)
def test_loss_function_that_leaves_no_gradient_to_take_is_refused(score: Scored, loss: Any, message: str) -> None:
    model = net(3, 5, 2)
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=message):
        score(model, loss, batches(4))
    assert whole_state(model) == before


class Checkpointed(nn.Module):
    """A model of which a checkpoint, if it is reentrant, hides the first layer from `torch.autograd.grad`."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.hidden, self.head, self.is_reentrant = nn.Linear(3, 5), nn.Linear(5, 2), is_reentrant
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.hidden, x.clone().requires_grad_(), use_reentrant=self.is_reentrant))


@pytest.mark.parametrize("score", [*BY_GRADIENT.values(), RUNNING["synflow"]], ids=[*BY_GRADIENT, "synflow"])
def test_weights_that_a_checkpoint_hides_are_not_taken_for_useless(score: Scored) -> None:
    model = Checkpointed(is_reentrant=True)
    before = whole_state(model)
    with pytest.raises(UnsupportedError, match=r"use_reentrant=True(.|\n)*use_reentrant=False"):
        score(model, squared_error, batches(4))
    assert whole_state(model) == before


@every_gradient_score
def test_checkpoints_that_hide_nothing_change_no_score(score: Scored) -> None:
    model = Checkpointed(is_reentrant=False)
    found = score(model, squared_error, batches(4, 3))
    expected = score(nn.Sequential(model.hidden, model.head), squared_error, batches(4, 3))
    assert all(torch.equal(one, other) for one, other in zip(found.values(), expected.values(), strict=True))


@every_data_score
@pytest.mark.parametrize("steps", [-1, 1.5, "2"], ids=repr)
def test_number_of_batches_that_is_none_is_refused(score: Any, steps: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"steps is the number of batches to take\.\n  steps: {steps!r}"):
        score(net(3, 5, 2), squared_error, batches(4), steps=steps)


@every_gradient_score
def test_frozen_model_is_refused_with_what_unfreezes_it(score: Scored) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing in Seq(.|\n)*frozen: 2(.|\n)*requires_grad_\(True\)"):
        score(net(3, 5, 2).requires_grad_(False), squared_error, batches(4))


@every_score
def test_scores_that_are_nan_are_refused_by_name(score: Scored) -> None:
    model = net(3, 5, 2)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=r"weight'(.|\n)*(nan|not finite): \d+ of"):
        score(model, squared_error, batches(4))
    assert whole_state(model) == before


@every_start
def test_inference_mode_is_refused(score: Scored) -> None:
    model = net(3, 5, 2)
    before = whole_state(model)
    with torch.inference_mode(), pytest.raises(InvalidInputError, match="cannot score in inference mode"):
        score(model, squared_error, batches(4))
    assert whole_state(model) == before
    with torch.inference_mode():
        made_there = net(3, 5, 2)
    with pytest.raises(InvalidInputError, match=r"in inference mode(.|\n)*0\.weight"):
        score(made_there, squared_error, batches(4))


@every_start
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_lazy_and_wrapped_models_are_refused(score: Scored) -> None:
    with pytest.raises(UnsupportedError, match=r"'0\.weight': it is lazy"):
        score(nn.Sequential(nn.LazyLinear(2)), squared_error, batches(4))
    with pytest.raises(UnsupportedError, match="ScriptModule"):
        score(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), squared_error, batches(4))
