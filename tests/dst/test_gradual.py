"""Sparsity that rises: exact after every change, whatever shares it out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secateur.allocation import ALLOCATIONS, PerTensor, uniform
from secateur.dst import Gradual, GraNet
from secateur.schedules import CURVES
from tests.dst.methods import net, step


@pytest.mark.parametrize("allocated", ALLOCATIONS.values(), ids=ALLOCATIONS)
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("method", [GraNet, Gradual])
def test_rising_sparsity_has_the_exact_count_after_every_change(method: Any, curve: Any, allocated: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 31), nn.Tanh(), nn.Linear(31, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = method(
        model, optimizer, sparsity=0.9, initial_sparsity=0.2, every=1, end_step=25, curve=curve, allocation=allocated
    )
    rising = curve(0.2, 0.9, begin_step=0, end_step=25)
    last = dict.fromkeys(training.masks, 0)
    for number in range(26):
        sizes = {name: mask.numel() for name, mask in training.masks.items()}
        zeros = {name: int((~mask).sum()) for name, mask in training.masks.items()}
        if allocated is uniform or isinstance(allocated, PerTensor):
            assert zeros == {name: round(rising(number) * size) for name, size in sizes.items()}
        else:
            assert sum(zeros.values()) == round(rising(number) * sum(sizes.values()))
        assert all(zeros[name] >= last[name] for name in last)
        last = zeros
        step(model, optimizer)
    assert training.next_step is None


@pytest.mark.parametrize("method", [GraNet, Gradual])
def test_sparsities_given_by_name_stay_while_that_of_all_others_rises(method: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = method(
        model, optimizer, sparsity=0.8, initial_sparsity=0.2, every=1, end_step=5, allocation={"2.*": 0.5}
    )
    assert [training.masks.sparsity(name) for name in training.masks] == [0.2, 0.5]
    for _ in range(6):
        step(model, optimizer)
    assert [training.masks.sparsity(name) for name in training.masks] == [0.8, 0.5]
