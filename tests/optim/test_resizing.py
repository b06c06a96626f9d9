"""Sparse optimizers go on as torch's own do after a model was cut, grown or repaired, and with masks that exchange."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import secateur
from secateur import RigL, dst, tickets
from tests.optim.cases import CASES, Case, Pair, assert_close, assert_zero, by_path, pair, path

BOTH = [case for case in CASES if case.name in ("SparseAdamW-amsgrad", "SparseSGD-momentum")]
by_kind = pytest.mark.parametrize("case", BOTH, ids=lambda case: case.name)


def masked_pair(case: Case) -> Pair:
    """Two models in mid-training, with masks."""
    both = pair(case, torch.float64)
    both.step(0)
    both.mask(0.4)
    both.step(1, 2)
    return both


@by_kind
def test_training_goes_on_after_a_resize(case: Case) -> None:
    both = masked_pair(case)
    keep = [0, 1, 5, 7, 20, 31]

    def cut(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with secateur.transaction(model, optimizer) as change:
            change.resize("first.weight", dim=0, keep=keep)
            change.resize("first.bias", dim=0, keep=keep)
            change.resize("last.weight", dim=1, keep=keep)

    both.both(cut)
    assert_close(both)
    both.step(3, 4, 5)
    assert_close(both)


@by_kind
def test_training_goes_on_after_shrinking_and_growing(case: Case) -> None:
    both = masked_pair(case)
    example = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    both.both(lambda model, optimizer: secateur.shrink_(model, example, sparsity=0.5, optimizer=optimizer))
    assert both.model.first.out_features < 33
    both.step(3, 4)
    assert_close(both)

    def grow(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with secateur.transaction(model, optimizer) as change:
            for name, dim in (("first.weight", 0), ("first.bias", 0), ("last.weight", 1)):
                change.grow(name, dim=dim, size=40, init=nn.init.ones_)

    both.both(grow)
    both.step(5, 6)
    assert_close(both)


@by_kind
def test_a_resize_that_fails_leaves_state_as_it_was(case: Case) -> None:
    both = masked_pair(case)
    weight = both.model.first.weight
    before = copy.deepcopy(both.optimizer.state[weight])

    class Stubborn:
        """Fails as it follows."""

    @secateur.surgery.holder(Stubborn)
    def refuse(_: object, changes: object) -> list[object]:
        def fail() -> None:
            raise RuntimeError("no")

        return [secateur.surgery.Do(fail)]

    with pytest.raises(RuntimeError, match="no"):
        secateur.resize_(both.model, "first.weight", dim=0, keep=[0], optimizer=[both.optimizer], ema=Stubborn())
    after = both.optimizer.state[weight]
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    secateur.surgery.holders.HOLDERS.pop(Stubborn)


@by_path
@by_kind
def test_rigl_trains_as_with_torch(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair(case, torch.float64)
        trainings = [
            RigL(model, optimizer, sparsity=0.7, every=2, end_step=20, drop_fraction=0.4)
            for model, optimizer in ((both.model, both.optimizer), (both.twin, both.reference))
        ]
        first = dict(trainings[0].masks)
        both.step(*range(15))
        assert trainings[0].masks == trainings[1].masks
        assert any(not torch.equal(first[name], mask) for name, mask in trainings[0].masks.items())
        assert_close(both, roundings=2.0**12)


@by_kind
def test_weights_that_rigl_has_just_grown_have_no_history(case: Case) -> None:
    both = pair(case)
    training = RigL(both.model, both.optimizer, sparsity=0.7, every=3, end_step=20, drop_fraction=0.4)
    for number in range(2):
        both.step_one(both.model, both.optimizer, number)
    before = dict(training.masks)
    both.step_one(both.model, both.optimizer, 2)
    state, num_grown = both.optimizer.state_dict()["state"], 0
    for index, (name, _) in enumerate(both.model.named_parameters()):
        if name in before:
            mask, grown = training.masks[name], training.masks[name] & ~before[name]
            num_grown += int(grown.sum())
            for value in state[index].values():
                if value.dim():
                    assert_zero(value[grown])
                    assert_zero(value[~mask])
    assert num_grown > 0


@by_kind
def test_masks_that_are_held_in_another_way_leave_weights_to_train_whole(case: Case) -> None:
    both = pair(case, torch.float64)
    both.both(lambda model, optimizer: dst.SRSTE(model, optimizer, n=1, m=3, include="first.weight"))
    both.step(0, 1, 2)
    for one, other in zip(both.model.parameters(), both.twin.parameters(), strict=True):
        assert torch.equal(one, other)
        found, expected = both.optimizer.state[one], both.reference.state[other]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())


@by_kind
def test_the_doctor_finds_nothing_wrong(case: Case) -> None:
    both = masked_pair(case)
    with secateur.watch(both.model, both.optimizer) as watched:
        both.step(*range(3, 20))
    assert list(watched.findings) == []
    found = secateur.diagnose(both.model, both.optimizer)
    assert list(found) == []


@by_kind
def test_a_replaced_parameter_takes_its_state_along_when_it_is_linked_again(case: Case) -> None:
    both = masked_pair(case)

    def replace(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.last.weight = nn.Parameter(model.last.weight.detach().clone())
        secateur.relink_(model, optimizer)

    both.both(replace)
    both.step(3, 4)
    assert_close(both)


@by_kind
def test_rewinding_brings_state_back_under_other_masks(case: Case) -> None:
    both = masked_pair(case)
    sides = ((both.model, both.optimizer), (both.twin, both.reference))
    snapshots = [tickets.Snapshot.of(model, optimizer) for model, optimizer in sides]
    both.step(3)
    both.both(lambda model, optimizer: secateur.prune_(model, optimizer, sparsity=0.8))
    both.step(4)
    for snapshot, (model, optimizer) in zip(snapshots, sides, strict=True):
        tickets.rewind_(model, snapshot, optimizer)
    both.step(5, 6)
    assert_close(both)
