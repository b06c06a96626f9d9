from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from secateur.masks import registry
from secateur.masks.bits import Bits
from secateur.masks.mask import Mask
from tests.masks.oracles import half


def masked(parameter: nn.Parameter) -> Mask:
    return Mask(parameter, Bits.of(half(parameter.shape), parameter))


def test_mask_is_found_from_its_parameter_only() -> None:
    one, other = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 2))
    mask = masked(one)
    assert registry.mask_of(one) is mask
    assert registry.mask_of(other) is None


def test_later_mask_takes_the_place_of_the_first() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    first, second = masked(parameter), masked(parameter)
    assert registry.mask_of(parameter) is second
    registry.leave(parameter, first)
    assert registry.mask_of(parameter) is second
    registry.leave(parameter, second)
    assert registry.mask_of(parameter) is None


def test_epoch_changes_when_masks_come_and_go_and_not_otherwise() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    epochs = [registry.epoch()]
    mask = masked(parameter)
    epochs.append(registry.epoch())
    mask.release()
    epochs.append(registry.epoch())
    mask.release()
    assert len(set(epochs)) == 3
    assert registry.epoch() == epochs[-1]


def test_registry_keeps_no_parameter_alive() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    mask = masked(parameter)
    before, epoch = len(registry._MASKS), registry.epoch()
    del parameter
    assert len(registry._MASKS) == before - 1
    with pytest.raises(ReferenceError, match="no longer exists"):
        _ = mask.parameter
    assert registry.epoch() != epoch


def test_what_waits_for_the_first_mask_is_called_once() -> None:
    called = []
    registry.at_first_mask(lambda: called.append(1))
    assert called == []
    masked(nn.Parameter(torch.zeros(2, 2)))
    masked(nn.Parameter(torch.zeros(2, 2)))
    assert called == [1]


def test_masks_are_announced_before_they_are_lifted() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    replaced, mask = masked(parameter), masked(parameter)
    seen = []
    note = registry.at_lifting(lambda lifted: seen.append((lifted, lifted.is_active, registry.mask_of(parameter))))
    try:
        replaced.release()
        assert seen == []
        mask.listen(None, enforced=False)
        mask.release()
    finally:
        registry._lifting.remove(note)
    assert seen == [(mask, True, mask)] * 2


def test_process_without_masks_has_no_hooks() -> None:
    code = """
import torch, secateur
from torch.nn.modules.module import _global_parameter_registration_hooks as registration
from torch.optim.optimizer import _global_optimizer_post_hooks as after, _global_optimizer_pre_hooks as before
print(len(before), len(after), len(registration))
secateur.prune_(torch.nn.Linear(4, 4), sparsity=0.5)
secateur.prune_(torch.nn.Linear(4, 4), sparsity=0.5)
print(len(before), len(after), len(registration))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 0 0", "1 1 1"]
