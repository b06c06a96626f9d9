"""Masks are the same with the native kernels and without, for every score, pattern, allocation and method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import secateur._native as native
from secateur import SecateurError, prune_
from secateur.allocation import ALLOCATIONS
from secateur.dst import METHODS
from secateur.patterns import PATTERNS, Pattern
from secateur.scores import DATA_SCORES, SCORES
from tests.dst.methods import END, changes, make
from tests.masks.test_choosing import GIVEN, net, scored


def both(outcome: Callable[[], Any]) -> tuple[Any, Any]:
    """What comes of it with the kernels, and without."""
    assert native.library() is not None
    with_kernels = outcome()
    with patch.object(native, "library", return_value=None):
        return with_kernels, outcome()


def pruned(model: nn.Module, **choices: Any) -> dict[str, Tensor] | str:
    """The masks, or why there are none."""
    try:
        return dict(prune_(model, **choices))
    except SecateurError as error:
        return str(error)


def assert_same(one: dict[str, Tensor] | str, other: dict[str, Tensor] | str) -> None:
    """Equal masks, or equal words."""
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert one.keys() == other.keys()
        assert all(torch.equal(mask, other[name]) for name, mask in one.items())


@pytest.mark.parametrize("score", [*SCORES, *DATA_SCORES, *GIVEN])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_masks_are_the_same(score: str, pattern: Pattern) -> None:
    def outcome() -> list[dict[str, Tensor] | str]:
        choices = {"sparsity": 0.6 if pattern.sparsity is None else None, "score": scored(score), "pattern": pattern}
        return [pruned(net(), allocation=allocate, **choices) for allocate in ALLOCATIONS.values()]

    for one, other in zip(*both(outcome), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_masks_of_larger_weights_are_the_same_and_so_are_further_zeros(score: str, allocate: Any) -> None:
    def outcome() -> list[dict[str, Tensor] | str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(300, 280), nn.Linear(280, 5))
        choices = {"score": SCORES[score], "allocation": allocate}
        return [pruned(model, sparsity=sparsity, **choices) for sparsity in (0.5, 0.9)]

    for one, other in zip(*both(outcome), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("method", [name for name in METHODS if changes(name)])
@pytest.mark.parametrize("pattern", [p for p in PATTERNS.values() if p.sparsity is None], ids=str)
def test_training_changes_the_same_masks(method: str, pattern: Pattern) -> None:
    def outcome() -> tuple[list[dict[str, Tensor]], list[Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        training, masks = make(method, model, optimizer, sparsity=0.8, pattern=pattern), []
        for _ in range(END):
            optimizer.zero_grad()
            model(torch.randn(8, 96)).pow(2).mean().backward()
            optimizer.step()
            masks.append(dict(training.masks))
        return masks, list(training.history)

    (masks, history), (other_masks, other_history) = both(outcome)
    assert history == other_history
    assert len(history) > 1
    for one, other in zip(masks, other_masks, strict=True):
        assert_same(one, other)
