"""What sparse optimizers save and load is what torch's own do; copies go on alike."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import secateur
from secateur import Masks
from tests.optim.cases import BOTH, Case, Net, assert_close, assert_same, by_case, by_kind, masks_of, pair


@by_case
def test_resumed_run_equals_the_uninterrupted_one_bit_by_bit(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0, 1)
    file = io.BytesIO()
    torch.save((both.model.state_dict(), both.optimizer.state_dict(), Masks(both.model).state_dict()), file)
    for order in ("weights first", "masks last"):
        file.seek(0)
        weights, state, masks = torch.load(file, weights_only=True)
        torch.manual_seed(1)
        fresh = Net()
        optimizer = case.make(fresh.parameters())
        if order == "masks last":
            Masks.from_dict(fresh, masks_of(fresh, 0.2, seed=3))  # a script that prunes before it resumes
            optimizer.load_state_dict(state)
            fresh.load_state_dict(weights)
            Masks(fresh).load_state_dict(masks)
        else:
            fresh.load_state_dict(weights)
            Masks(fresh).load_state_dict(masks)
            optimizer.load_state_dict(state)
        continued = copy.deepcopy((both.model, both.optimizer))
        for number in (2, 3):
            both.step_one(fresh, optimizer, number)
            both.step_one(*continued, number)
        assert_same(optimizer.state_dict(), continued[1].state_dict())
        assert_same(fresh.state_dict(), continued[0].state_dict())


@by_case
def test_state_is_exchanged_with_torch_in_both_directions(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0, 1)
    mine, theirs = both.optimizer.state_dict(), both.reference.state_dict()
    assert mine["param_groups"][0].keys() == theirs["param_groups"][0].keys()
    both.hand_over()
    both.optimizer.load_state_dict(copy.deepcopy(theirs))
    group = both.optimizer.param_groups[0]
    assert [group[name] for name in ("foreach", "fused", "differentiable")] == [None, None, False]
    both.step(2, 3)
    assert_close(both)


@by_kind
def test_state_loaded_with_options_of_torch_is_stepped_with_its_numbers(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0)
    state = both.reference.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    both.optimizer.load_state_dict(state)
    assert both.optimizer.param_groups[0]["lr"] == 0.5


@by_case
def test_copies_and_pickles_train_like_the_original_and_leave_it_alone(case: Case) -> None:
    both = pair(case)
    both.mask(0.3)
    both.step(0, 1)
    model, optimizer = copy.deepcopy((both.model, both.optimizer))
    state = copy.deepcopy(both.optimizer.state_dict())
    for number in (2, 3):
        both.step_one(model, optimizer, number)
    assert_same(both.optimizer.state_dict(), state)
    for number in (2, 3):
        both.step_one(both.model, both.optimizer, number)
    assert_same(optimizer.state_dict(), both.optimizer.state_dict())
    assert_same(model.state_dict(), both.model.state_dict())


def test_state_of_another_shape_is_refused_before_any_weight_is_changed() -> None:
    both = pair(BOTH[0])
    both.mask(0.3)
    state = both.reference.state_dict()
    both.step(0)
    state = copy.deepcopy(both.reference.state_dict())
    state["state"][3]["exp_avg"] = torch.zeros(3, 3)
    both.optimizer.load_state_dict(state)
    before = copy.deepcopy(both.model.state_dict())
    with pytest.raises(secateur.ShapeError, match="another shape than its parameter"):
        both.optimizer.step()
    assert_same(both.model.state_dict(), before)
