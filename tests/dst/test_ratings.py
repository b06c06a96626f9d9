"""Scores of masks that change."""

from __future__ import annotations

import math

import pytest
import torch

from secateur import InvalidInputError, scores
from secateur.dst import Moment, gradient, random, weight_and_gradient


def moment(step: int = 3, seed: int = 0) -> Moment:
    weights = {"a": torch.tensor([[1.0, -2.0]]), "b": torch.tensor([3.0, 0.0])}
    return Moment(weights, {"a": torch.tensor([[-4.0, 1.0]])}, step=step, seed=seed)


def test_gradient_is_the_size_of_gradients_of_weights_that_have_one() -> None:
    assert {name: score.tolist() for name, score in gradient(moment()).items()} == {"a": [[4.0, 1.0]]}


def test_weight_and_gradient_is_their_weighted_sum() -> None:
    found = weight_and_gradient(0.5)(moment())
    assert {name: score.tolist() for name, score in found.items()} == {"a": [[3.0, 2.5]]}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_gradient_weight_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InvalidInputError, match="gradient_weight must be"):
        weight_and_gradient(value)


def test_random_depends_on_step_seed_and_name_alone() -> None:
    first = random(moment())
    torch.rand(3)
    assert all(torch.equal(score, first[name]) for name, score in random(moment()).items())
    for other in (moment(step=4), moment(seed=1), moment(seed=-1)):
        assert not torch.equal(random(other)["a"], first["a"])
    assert not torch.equal(first["a"].flatten(), first["b"])


def test_scores_of_weights_alone_take_a_moment() -> None:
    assert scores.magnitude(moment())["b"].tolist() == [3.0, 0.0]
    assert list(moment()) == ["a", "b"]
    assert len(moment()) == 2
