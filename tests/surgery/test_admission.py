"""Which optimizers must be passed, and which must not."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from secateur import HolderError, UnsupportedError, resize_, transaction


def trained(layer: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def test_optimizer_that_was_not_passed_is_reported() -> None:
    layer = nn.Linear(3, 4)
    optimizer = trained(layer)
    with pytest.raises(HolderError, match="an optimizer that was not passed holds 'weight'") as caught:
        resize_(layer, "weight", dim=1, keep=[0, 1])
    assert "optimizer: Adam" in str(caught.value)
    assert "fix:   pass it: optimizer=…" in str(caught.value)
    assert layer.weight.shape == optimizer.state[layer.weight]["exp_avg"].shape == (4, 3)


def test_second_optimizer_that_was_not_passed_is_reported() -> None:
    layer = nn.Linear(3, 4)
    optimizer, other = trained(layer), torch.optim.SGD(layer.parameters())
    with pytest.raises(HolderError, match="optimizer: SGD"):
        resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=optimizer)
    assert layer.weight.shape == (4, 3)
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=(optimizer, other))
    assert layer.weight.shape == (4, 2)


def test_optimizer_that_is_only_waiting_to_be_freed_is_not_in_the_way() -> None:
    layer = nn.Linear(3, 4)
    optimizer = trained(layer)
    optimizer.cycle = optimizer
    gc.disable()
    try:
        del optimizer
        resize_(layer, "weight", dim=1, keep=[0, 1])
    finally:
        gc.enable()
    assert layer.weight.shape == (4, 2)


def test_optimizer_of_another_model_is_refused() -> None:
    layer = nn.Linear(3, 4)
    strange = torch.optim.SGD(nn.Linear(3, 4).parameters())
    with pytest.raises(HolderError, match="SGD does not hold 'weight': it was made for another model"):
        resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=strange)
    assert layer.weight.shape == (4, 3)


def test_optimizer_that_lost_the_parameter_is_refused_with_the_way_to_mend_it() -> None:
    layer = nn.Linear(3, 4)
    optimizer = trained(layer)
    layer.weight = nn.Parameter(layer.weight * 1)
    with pytest.raises(HolderError, match=r"secateur.relink_\(model, optimizer\)"):
        resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=optimizer)
    assert layer.weight.shape == (4, 3)


def test_transaction_refuses_a_trainable_parameter_that_no_passed_optimizer_holds() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    head = torch.optim.SGD(model[1].parameters())
    with pytest.raises(HolderError, match=r"does not hold '0\.weight'"):
        _shrink(model, head)
    assert model[0].weight.shape == (4, 3)
    model[0].requires_grad_(False)
    _shrink(model, head)
    assert model[0].weight.shape == (2, 3)


def _shrink(model: nn.Module, optimizer: object) -> None:
    with transaction(model, optimizer) as t:
        t.resize("0.weight", dim=0, keep=[0, 1])
        t.resize("0.bias", dim=0, keep=[0, 1])
        t.resize("1.weight", dim=1, keep=[0, 1])


def test_frozen_parameters_and_buffers_need_not_be_held() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].bias], lr=0.1)
    resize_(model, "0.weight", dim=1, keep=[0], optimizer=optimizer)
    resize_(model, "1.running_mean", dim=0, keep=[0], optimizer=optimizer)
    assert (model[0].in_features, model[1].num_features) == (1, 1)


def test_list_may_hold_optimizers_of_other_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    body, head = (torch.optim.SGD(part.parameters()) for part in model)
    resize_(model[0], "weight", dim=1, keep=[0], optimizer=[body, head])
    assert model[0].in_features == 1


def test_ddp_around_the_model_is_found() -> None:
    layer = nn.Linear(3, 4)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wrapper = DistributedDataParallel(nn.Sequential(layer))
    dist.destroy_process_group()  # from here on, only what the wrapper holds tells of it
    with pytest.raises(UnsupportedError, match="its reducer keeps the old gradient accumulators and buckets"):
        resize_(layer, "weight", dim=1, keep=[0])
    assert layer.weight.shape == (4, 3)
    assert wrapper.module[0] is layer


def test_census_is_taken_once_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    from secateur.surgery import admission

    calls, census = [], admission.census
    monkeypatch.setattr(admission, "census", lambda tensors: calls.append(1) or census(tensors))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    weight = model[0].weight  # a reference of which nothing is known
    _shrink(model, None)
    assert len(calls) == 1
    assert weight is model[0].weight
