"""Sparse optimizers train as torch's own do on masked models, whatever happens to masks and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur import Masks
from secateur.optim import SparseAdamW
from tests.optim.cases import (
    Case,
    Pair,
    assert_close,
    assert_zero,
    by_case,
    by_kind,
    by_path,
    masks_of,
    pair,
    path,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@by_path
@by_case
def test_kept_weights_train_as_with_torch(case: Case, is_native: bool, dtype: torch.dtype) -> None:
    for density in (1.0, 0.5, 0.1, 0.01):
        with path(is_native):
            both = pair(case, dtype)
            both.mask(density)
            both.step(*range(6))
            assert_close(both)


@by_path
@by_case
def test_masks_may_come_change_and_go_in_mid_training(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case)
        both.step(0, 1)
        both.mask(0.5)
        both.step(2, 3)
        assert_close(both)
        both.mask(0.4, seed=1)
        both.step(4, 5)
        assert_close(both)
        both.both(lambda model, optimizer: secateur.prune_(model, optimizer, sparsity=0.9))
        both.step(6)
        assert_close(both)
        both.both(lambda model, _: Masks(model).remove())
        both.hand_over()  # torch's optimizer has second moments of 1 where masks were
        both.step(7, 8)
        assert_close(both)
        assert all("kept" not in state for state in both.optimizer.state.values())


@by_kind
def test_many_steps_stay_as_close_as_rounding_allows(case: Case) -> None:
    both = pair(case, torch.float64)
    both.mask(0.1)
    both.step(*range(200))
    assert_close(both, roundings=2.0**14)


@by_kind
def test_state_of_masked_weights_is_not_kept(case: Case) -> None:
    both = pair(case)
    both.step(0)
    both.mask(0.1)
    both.step(1)
    for name, mask in Masks(both.model).items():
        state = both.optimizer.state[both.model.get_parameter(name)]
        lengths = {tuple(value.shape) for key, value in state.items() if key not in ("step", "kept")}
        assert lengths == {(int(mask.sum()),)}


def test_state_and_masks_take_less_than_two_bytes_a_weight() -> None:
    model = nn.Linear(640, 1000, bias=False)
    optimizer = SparseAdamW(model.parameters())
    masks = secateur.prune_(model, optimizer, sparsity=0.9)
    model(torch.randn(2, 640)).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    assert state["kept"].data_ptr() == next(iter(masks._found().values())).bits.packed.data_ptr()
    held = sum(value.nbytes for key, value in state.items() if key != "kept") + masks.num_bytes()
    assert held / model.weight.numel() < 1.0


@by_path
@by_case
def test_regrown_weights_start_without_history_and_dropped_ones_leave_none(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case)
        both.mask(0.5)
        both.step(0, 1)
        masks = Masks(both.model)
        first = dict(masks)
        both.both(lambda model, _: Masks(model).update_(masks_of(model, 0.5, seed=1)))
        second = dict(masks)
        for index, (name, parameter) in enumerate(both.model.named_parameters()):
            entries = both.optimizer.state_dict()["state"].get(index, {})
            for key, value in entries.items():
                if name in first and value.shape == parameter.shape:
                    assert_zero(value[second[name] & ~first[name]])
                    assert_zero(value[~second[name]])
                    assert key == "max_exp_avg_sq" or (value[second[name] & first[name]] != 0).any()
        both.step(2, 3)
        assert_close(both)


@by_kind
@pytest.mark.parametrize("is_stepped", [True, False], ids=["compact", "dense"])
def test_weights_that_are_dropped_and_regrown_between_two_steps_have_no_history(case: Case, is_stepped: bool) -> None:
    both = pair(case, torch.float64)
    both.step(0)
    both.mask(0.5)
    if is_stepped:
        both.step(1)
    for seed in (1, 0):
        both.both(lambda model, _, seed=seed: Masks(model).update_(masks_of(model, 0.5, seed=seed)))
    both.step(2, 3)
    assert_close(both)


@by_path
@by_kind
def test_nothing_that_masked_gradients_hold_has_an_influence(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case)
        both.mask(0.3)
        for number in range(3):
            _step_with_wild_gradients(both, both.model, both.optimizer, number)
            _step_with_wild_gradients(both, both.twin, both.reference, number)
        assert_close(both)


def _step_with_wild_gradients(both: Pair, model: nn.Module, optimizer: Any, number: int) -> None:
    """The model's gradients hold nan, inf and numbers at masked places, the twin's hold zeros."""
    generator = torch.Generator().manual_seed(number)
    masks = dict(Masks(model))
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        wild = torch.tensor([torch.nan, torch.inf, -1.0])[torch.randint(3, gradient.shape, generator=generator)]
        if name in masks:
            other = wild if model is both.model else torch.zeros_like(wild)
            gradient = torch.where(masks[name], gradient, other)
        parameter.grad = gradient
    optimizer.step()


@by_kind
def test_masked_weights_that_were_written_to_are_zero_after_the_step(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0)
    for parameter in both.model.parameters():
        parameter.data.add_(1.0)
    both.step_one(both.model, both.optimizer, 1)
    for name, mask in Masks(both.model).items():
        assert_zero(both.model.get_parameter(name).detach()[~mask])


@by_kind
def test_parameters_without_a_gradient_stay_as_they_are_but_for_masked_weights(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0)
    with torch.no_grad():
        both.model.last.weight.add_(1.0)
    before = both.model.last.weight.detach().clone()
    state = copy.deepcopy(both.optimizer.state[both.model.last.weight])
    both.optimizer.zero_grad()
    both.optimizer.step()
    mask = Masks(both.model)["last.weight"]
    assert torch.equal(both.model.last.weight.detach(), torch.where(mask, before, 0.0))
    after = both.optimizer.state[both.model.last.weight]
    assert all(torch.equal(after[key], value) for key, value in state.items())


@by_kind
def test_a_gradient_may_come_late(case: Case) -> None:
    both = pair(case)
    both.reference = case.dense(both.twin.parameters(), **case.options)  # SGD(fused=True) of torch 2.14 raises
    both.mask(0.3)
    both.both(lambda model, _: model.first.requires_grad_(False))
    both.step(0, 1)
    both.both(lambda model, _: model.first.requires_grad_(True))
    both.step(2, 3)
    assert_close(both)


@by_path
@by_kind
def test_channels_last_and_strided_weights_are_stepped_alike(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case)
        both.mask(0.3)
        both.step(0)
        both.model.to(memory_format=torch.channels_last)
        both.model.last.weight.data = both.model.last.weight.data.t().contiguous().t()
        assert not both.model.last.weight.is_contiguous()
        both.step(1, 2, 3)
        assert_close(both)
        assert not both.model.conv.weight.is_contiguous()


@by_kind
def test_tied_weights_are_stepped_once(case: Case) -> None:
    both = pair(case)
    both.both(lambda model, _: setattr(model, "again", nn.Linear(33, 3, bias=False)))
    both.both(lambda model, _: setattr(model.again, "weight", model.last.weight))
    both.mask(0.3)
    both.step(0, 1)
    assert both.model.again.weight is both.model.last.weight
    assert_close(both)


@by_kind
def test_groups_have_options_of_their_own_and_may_be_added(case: Case) -> None:
    both = pair(case)
    both.optimizer = case.make([{"params": both.model.conv.parameters(), "lr": 0.001}])
    both.reference = case.make_torch([{"params": both.twin.conv.parameters(), "lr": 0.001}])
    rest = [["norm", "first"], ["last"]]
    for names in rest:
        both.both(
            lambda model, optimizer, names=names: optimizer.add_param_group(
                {"params": [p for n in names for p in getattr(model, n).parameters()], "weight_decay": 0.3}
            )
        )
    both.mask(0.3)
    both.step(0, 1, 2)
    assert_close(both)


@by_kind
def test_schedules_change_the_rate(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=5) for o in (both.optimizer, both.reference)]
    for number in range(4):
        both.step(number)
        for schedule in schedules:
            schedule.step()
    assert_close(both)


@by_kind
def test_the_step_may_be_called_from_compiled_code(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    compiled = torch.compile(both.step_one, backend="eager")
    for number in range(2):
        compiled(both.model, both.optimizer, number)
        both.step_one(both.twin, both.reference, number)
    assert_close(both)


@by_kind
def test_closures_are_evaluated_with_gradients(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    inputs = torch.randn(8, 3, 5, 5)

    def step(model: nn.Module, optimizer: Any) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).pow(2).mean()
            loss.backward()
            return loss

        assert optimizer.step(closure).requires_grad

    both.both(step)
    both.both(step)
    assert_close(both)


@by_kind
def test_clipping_sees_kept_weights_only(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    norms = []

    def step(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        (100 * model(torch.ones(8, 3, 5, 5)).pow(2)).mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()

    both.both(step)
    assert norms[0] == norms[1] > 0.1
    assert_close(both)


@by_kind
def test_a_gradient_scaler_steps_and_skips(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)

    def train(model: nn.Module, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for factor in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(factor * model(torch.ones(8, 3, 5, 5)).pow(2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0

    both.both(train)
    assert_close(both)
