from __future__ import annotations

from functools import partial

import pytest
import torch

from secateur._errors import InvalidInputError
from secateur.scores import random


def test_random_scores_never_change() -> None:
    # what is drawn is part of the promise: the same seed gives the same mask on every machine and in every release
    score = random({"fc1.weight": torch.zeros(3)}, seed=3)["fc1.weight"]
    torch.testing.assert_close(score, torch.tensor([0.1056597, 0.0891895, 0.9733402]), rtol=0, atol=1e-6)


def test_random_depends_on_name_seed_and_shape_only() -> None:
    weights = {"a": torch.zeros(4, 5), "b": torch.ones(4, 5, dtype=torch.float16)}
    there = random(weights, seed=1)
    torch.rand(7)
    back = random(dict(reversed(weights.items())), seed=1)
    alone = random({"b": torch.rand(4, 5, dtype=torch.float64)}, seed=1)
    assert torch.equal(there["a"], back["a"])
    assert torch.equal(there["b"], back["b"])
    assert torch.equal(there["b"], alone["b"])


def test_random_differs_between_names_and_seeds() -> None:
    weights = {"a": torch.zeros(50), "b": torch.zeros(50)}
    drawn = [score for seed in (0, 1, -1) for score in random(weights, seed=seed).values()]
    assert len({tuple(score.tolist()) for score in drawn}) == 6
    assert torch.equal(drawn[0], random(weights)["a"])


def test_random_is_uniform() -> None:
    score = random({"a": torch.zeros(20_000)})["a"]
    assert score.dtype == torch.float32
    counts = torch.histc(score, bins=10, min=0.0, max=1.0)
    # 2000 expected in each tenth; five standard deviations are 5 sqrt(20000 * 0.1 * 0.9) = 212
    assert (counts - 2000).abs().max() < 212
    assert counts.sum() == 20_000


def test_random_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    random({"a": torch.zeros(10)})
    assert torch.equal(torch.get_rng_state(), before)


def test_random_ignores_the_default_dtype_and_device() -> None:
    expected = random({"a": torch.zeros(10)})["a"]
    with torch.device("meta"):
        torch.set_default_dtype(torch.float64)
        try:
            score = random({"a": torch.zeros(10, device="cpu")})["a"]
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(score, expected)


def test_random_refuses_a_seed_that_is_no_integer() -> None:
    with pytest.raises(InvalidInputError, match=r"seed must be an integer\.\n  seed: 3\.0"):
        partial(random, seed=3.0)({"a": torch.zeros(2)})
