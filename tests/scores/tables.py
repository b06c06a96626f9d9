"""Every score that runs the model, under one signature: the table, and `synflow` and `Movement` by an adapter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import scores
from secateur.scores import DATA_SCORES

Scored = Callable[..., dict[str, Tensor]]


def flowing(model: nn.Module, loss_fn: object, given: Iterable[Any], *, include: Any = None) -> dict[str, Tensor]:
    """`synflow` with the first batch's input as its example."""
    with torch.random.fork_rng():
        first = next(iter(given))
    x = first if isinstance(first, Tensor) else first[0]
    return scores.synflow(model, x, sparsity=0.5, rounds=3, include=include)


def moving(model: nn.Module, loss_fn: Any, given: Iterable[Any], *, include: Any = None) -> dict[str, Tensor]:
    """`Movement` over a step of a copy for every batch."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.random.fork_rng(), scores.Movement(model, optimizer, include=include) as movement:
        for batch in given:
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
    return movement.scores()


BY_DATA: dict[str, Any] = {**DATA_SCORES}
RUNNING = {**BY_DATA, "synflow": flowing}
ALL = {**RUNNING, "movement": moving}
BY_GRADIENT = {name: score for name, score in BY_DATA.items() if name != "wanda"}

every_score = pytest.mark.parametrize("score", ALL.values(), ids=ALL.keys())
every_running_score = pytest.mark.parametrize("score", RUNNING.values(), ids=RUNNING.keys())
every_data_score = pytest.mark.parametrize("score", BY_DATA.values(), ids=BY_DATA.keys())
every_gradient_score = pytest.mark.parametrize("score", BY_GRADIENT.values(), ids=BY_GRADIENT.keys())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def listening(model: nn.Module, loss_fn: object, given: object) -> scores.Movement:
    """`Movement` of the model itself."""
    return scores.Movement(model, torch.optim.SGD(model.parameters(), lr=0.1))


every_start = pytest.mark.parametrize("score", [*RUNNING.values(), listening], ids=[*RUNNING, "movement"])
