"""Gradients of masked weights that are left as they arrive: nobody but their readers sees a difference."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur
from secateur import Masks
from tests.optim.cases import (
    BOTH,
    Case,
    Net,
    Pair,
    assert_close,
    assert_same,
    assert_zero,
    by_case,
    by_kind,
    by_path,
    masks_of,
    pair,
    path,
)


def leaving(case: Case, model: nn.Module) -> Any:
    return case.sparse(model.parameters(), **copy.deepcopy(dict(case.options)), mask_gradients=False)  # type: ignore[call-arg]


def pair_that_leaves(case: Case, density: float = 0.3) -> Pair:
    """A masked model whose gradients are left as they arrive, and its twin, where torch steps masked gradients."""
    both = pair(case)
    both.optimizer = leaving(case, both.model)
    both.mask(density)
    return both


def arrive(model: nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    """A backward pass."""
    generator = torch.Generator().manual_seed(seed)
    (scale * model(torch.randn(8, 3, 5, 5, generator=generator)).pow(2).mean()).backward()


def masked_gradients(model: nn.Module) -> list[Tensor]:
    """What gradients hold at masked places."""
    return [model.get_parameter(name).grad[~mask] for name, mask in Masks(model).items()]


def are_masked(model: nn.Module) -> bool:
    return all(bool((entries == 0).all()) for entries in masked_gradients(model))


@by_path
@by_case
def test_kept_weights_train_as_with_masked_gradients(case: Case, is_native: bool) -> None:
    with path(is_native):
        both = pair_that_leaves(case)
        both.step(0, 1)
        assert not are_masked(both.model)
        both.mask(0.4, seed=1)
        both.step(2, 3)
        assert_close(both)
        both.both(lambda model, optimizer: secateur.prune_(model, optimizer, sparsity=0.9))
        both.step(4)
        assert_close(both)
        both.both(lambda model, _: Masks(model).remove())
        both.hand_over()
        both.step(5, 6)
        assert_close(both)


@by_kind
def test_gradients_are_left_from_the_first_pass_after_masks_were_made(case: Case) -> None:
    model = Net()
    optimizer = leaving(case, model)
    Masks.from_dict(model, masks_of(model, 0.3), optimizer)
    twin = copy.deepcopy(model)
    arrive(model)
    assert not are_masked(model)
    arrive(twin)
    assert are_masked(twin)


@by_kind
def test_masks_of_an_optimizer_that_was_not_named_are_left_after_its_first_step(case: Case) -> None:
    model = Net()
    Masks.from_dict(model, masks_of(model, 0.3))
    optimizer = leaving(case, model)
    arrive(model)
    assert are_masked(model)
    optimizer.step()
    optimizer.zero_grad()
    arrive(model)
    assert not are_masked(model)


@pytest.mark.parametrize("set_to_none", [True, False])
@by_path
@by_kind
def test_passes_add_up_and_gradients_may_be_zeroed_in_place(case: Case, is_native: bool, set_to_none: bool) -> None:
    with path(is_native):
        both = pair_that_leaves(case)

        def train(model: nn.Module, optimizer: Any) -> None:
            for number in range(3):
                optimizer.zero_grad(set_to_none=set_to_none)
                arrive(model, number)
                arrive(model, number + 10)
                optimizer.step()

        both.both(train)
        assert_close(both)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, torch.inf])
@by_path
@by_kind
def test_masking_them_before_clipping_gives_what_torch_clips(case: Case, is_native: bool, norm_type: float) -> None:
    with path(is_native):
        both = pair_that_leaves(case)
        norms = []

        def step(model: nn.Module, optimizer: Any) -> None:
            optimizer.zero_grad()
            arrive(model, scale=1000.0)
            if model is both.model:
                optimizer.mask_gradients_()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type))
            optimizer.step()

        both.both(step)
        assert norms[0] == norms[1] > 0.1
        assert_close(both)


@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 80),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**31),
    wild=st.sampled_from([torch.nan, torch.inf, 3.0]),
)
@by_kind
def test_masking_sets_what_is_masked_to_zero_and_nothing_else(
    case: Case, rows: int, columns: int, density: float, seed: int, wild: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(columns, rows)
    optimizer = leaving(case, model)
    mask = torch.rand(rows, columns, generator=generator) < density
    Masks.from_dict(model, {"weight": mask}, optimizer)
    gradient = torch.randn(rows, columns, generator=generator)
    model.weight.grad, model.bias.grad = torch.where(mask, gradient, wild), torch.ones(rows)
    optimizer.mask_gradients_()
    assert torch.equal(model.weight.grad, gradient * mask)
    assert_zero(model.weight.grad[~mask])
    assert torch.equal(model.bias.grad, torch.ones(rows))


@by_kind
def test_a_scaler_skips_a_step_for_masked_gradients_unless_they_are_masked_first(case: Case) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = leaving(case, model)
    Masks.from_dict(model, {"weight": torch.tensor([[True, False, True]] * 2)}, optimizer)
    inputs = torch.tensor([[1.0, torch.inf, 1.0]])

    def train(*, masks: bool) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        optimizer.zero_grad()
        (scaler.scale(model.weight * inputs)).sum().backward()
        if masks:
            optimizer.mask_gradients_()
        before = model.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (2.0 if masks else 1.0)
        return model.weight.detach() - before

    assert (train(masks=False) == 0).all()
    change = train(masks=True)
    assert (change[:, [0, 2]] != 0).all()
    assert (change[:, 1] == 0).all()


@pytest.mark.parametrize("num_passes", [1, 2])
@by_kind
def test_dynamic_sparse_training_exchanges_the_same_weights(case: Case, num_passes: int) -> None:
    torch.manual_seed(0)
    first = Net()
    second = copy.deepcopy(first)
    for model, optimizer in ((first, leaving(case, first)), (second, case.make(second.parameters()))):
        training = secateur.RigL(model, optimizer, sparsity=0.7, every=3, end_step=20)
        masks = {name: mask.clone() for name, mask in training.masks.items()}
        for number in range(10):
            optimizer.zero_grad()
            for each in range(num_passes):
                arrive(model, 10 * number + each)
            optimizer.step()
        assert any(not torch.equal(masks[name], mask) for name, mask in training.masks.items())
    assert dict(Masks(first)).keys() == dict(Masks(second)).keys()
    assert_same(dict(Masks(first)), dict(Masks(second)))
    assert_same(first.state_dict(), second.state_dict())


@by_kind
def test_another_optimizer_may_go_on_and_gradients_are_masked_again(case: Case) -> None:
    both = pair_that_leaves(case)
    both.step(0, 1)
    other = case.make_torch(both.model.parameters())
    other.load_state_dict(both.optimizer.state_dict())
    both.optimizer = other
    both.step(2, 3)
    assert are_masked(both.model)
    for name, mask in Masks(both.model).items():
        assert_zero(both.model.get_parameter(name).detach()[~mask])
    for one, twin in zip(both.model.parameters(), both.twin.parameters(), strict=True):
        torch.testing.assert_close(one, twin)


def test_gradients_are_masked_again_once_the_optimizer_is_gone() -> None:
    model = Net()
    optimizer = leaving(BOTH[0], model)
    Masks.from_dict(model, masks_of(model, 0.3), optimizer)
    arrive(model)
    assert not are_masked(model)
    del optimizer
    model.zero_grad()
    arrive(model)
    assert are_masked(model)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
@by_kind
def test_copies_of_the_optimizer_leave_them_too(case: Case, copied: Any) -> None:
    both = pair_that_leaves(case)
    both.step(0)
    model, optimizer = copied((both.model, both.optimizer))
    for _ in range(2):
        optimizer.zero_grad()
        arrive(model)
        optimizer.step()
    assert not are_masked(model)


@by_kind
def test_checkpoints_say_nothing_of_it_and_change_nothing_about_it(case: Case) -> None:
    both = pair_that_leaves(case)
    both.step(0)
    plain = case.make(both.twin.parameters())
    assert both.optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
    both.optimizer.load_state_dict(both.reference.state_dict())
    both.optimizer.zero_grad()
    arrive(both.model)
    assert not are_masked(both.model)


@by_kind
def test_weights_that_were_written_to_are_zero_after_the_step(case: Case) -> None:
    both = pair_that_leaves(case)
    both.step(0)
    with torch.no_grad():
        for parameter in both.model.parameters():
            parameter.add_(1.0)
    both.step_one(both.model, both.optimizer, 1)
    for name, mask in Masks(both.model).items():
        assert_zero(both.model.get_parameter(name).detach()[~mask])


@by_kind
def test_parameters_of_groups_that_are_added_later_are_left_too(case: Case) -> None:
    model = Net()
    optimizer = case.sparse(model.first.parameters(), **copy.deepcopy(dict(case.options)), mask_gradients=False)  # type: ignore[call-arg]
    optimizer.add_param_group(
        {"params": [*model.conv.parameters(), *model.norm.parameters(), *model.last.parameters()]}
    )
    Masks.from_dict(model, masks_of(model, 0.3), optimizer)
    arrive(model)
    assert not any(bool((entries == 0).all()) for entries in masked_gradients(model))


@by_kind
def test_weights_regrown_between_backward_and_step_are_stepped_at_once(case: Case) -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = leaving(case, model)
    masks = Masks.from_dict(model, {"weight": torch.tensor([[True, False, False, True]] * 3)}, optimizer)
    (model.weight * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    masks.update_({"weight": torch.tensor([[True, True, False, False]] * 3)})
    optimizer.step()
    assert (model.weight[:, 1] < 0).all()
    assert_zero(model.weight.detach()[:, 2:])
