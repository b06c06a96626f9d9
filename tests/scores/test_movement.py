from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, ShapeError, UnsupportedError, prune_, resize_
from secateur.scores import Movement
from tests.scores.models import Batch, batches, net, squared_error, weights_of, whole_state


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    squared_error(model, batch).backward()
    optimizer.step()


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, given: list[Batch]) -> dict[str, Tensor]:
    """A training loop that adds up what the paper says, as a careful user would write it."""
    sums = {name: torch.zeros_like(weight, requires_grad=False) for name, weight in weights_of(model).items()}
    for batch in given:
        optimizer.zero_grad()
        squared_error(model, batch).backward()
        for name, weight in weights_of(model).items():
            sums[name] -= weight.detach() * weight.grad
        optimizer.step()
    return sums


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def test_movement_is_the_sum_over_steps_of_minus_weight_times_gradient() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    twin = copy.deepcopy(model)
    optimizer = adam(model)
    movement = Movement(model, optimizer)
    for batch in given:
        step(model, optimizer, batch)
    assert movement.num_steps == 3
    for name, expected in by_hand(twin, adam(twin), given).items():
        torch.testing.assert_close(movement.scores()[name], expected, rtol=1e-12, atol=0)


def test_weight_that_moves_away_from_zero_is_kept() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Movement(model, optimizer) as movement:
        for _ in range(3):
            optimizer.zero_grad()
            (model.weight - torch.tensor([[3.0, 0.5]])).square().sum().backward()
            optimizer.step()
    grows, shrinks = movement.scores()["weight"][0]
    assert grows > 0 > shrinks


def test_movement_stops_when_it_is_removed_and_keeps_its_scores() -> None:
    model, given = net(3, 4, 2), batches(4, 6)
    optimizer = adam(model)
    with Movement(model, optimizer) as movement:
        step(model, optimizer, given[0])
    before = movement.scores()
    step(model, optimizer, given[1])
    movement.remove()
    assert all(torch.equal(movement.scores()[name], before[name]) for name in before)
    assert not optimizer._optimizer_step_pre_hooks
    before["0.weight"].zero_()
    assert movement.scores()["0.weight"].any()


def test_hook_is_removed_when_training_raises() -> None:
    model = net(3, 4, 2)
    optimizer = adam(model)
    with pytest.raises(ArithmeticError), Movement(model, optimizer):
        raise ArithmeticError
    assert not optimizer._optimizer_step_pre_hooks


def test_gradients_are_those_of_all_batches_that_were_accumulated() -> None:
    model, given = net(3, 4, 2), batches(4, 6)
    optimizer = adam(model)
    movement = Movement(model, optimizer)
    for batch in given:
        squared_error(model, batch).backward()
    expected = {name: -weight.detach() * weight.grad for name, weight in weights_of(model).items()}
    optimizer.step()
    for name, score in movement.scores().items():
        torch.testing.assert_close(score, expected[name])


@pytest.mark.parametrize("by_name", [False, True])
def test_closure_is_followed_and_not_preceded(by_name: bool) -> None:
    model, given = net(3, 4, 2), batches(4, 6)
    twin = copy.deepcopy(model)
    optimizer = adam(model)
    movement = Movement(model, optimizer)
    for batch in given:

        def closure(batch: Batch = batch) -> Tensor:
            optimizer.zero_grad()
            loss = squared_error(model, batch)
            loss.backward()
            return loss

        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert loss.item() > 0
    for name, expected in by_hand(twin, adam(twin), given).items():
        torch.testing.assert_close(movement.scores()[name], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("fused", [False, True])
def test_scale_of_a_grad_scaler_does_not_count_and_skipped_steps_do_not_either(fused: bool) -> None:
    model, given = net(3, 4, 2).float(), batches(4, 6)
    given = [(x.float(), y.float()) for x, y in given]
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    movement = Movement(model, optimizer)
    for batch, factor in [(given[0], 1.0), (given[0], float("inf")), (given[1], 1.0)]:
        optimizer.zero_grad()
        scaler.scale(squared_error(model, batch) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert movement.num_steps == 2
    by_twin = by_hand(twin, torch.optim.Adam(twin.parameters(), lr=0.05, fused=fused), given)
    for name, expected in by_twin.items():
        torch.testing.assert_close(movement.scores()[name], expected, rtol=1e-4, atol=1e-6)


def test_several_optimizers_share_the_weights() -> None:
    model, batch = net(3, 4, 2), batches(4)[0]
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.1)]
    movement = Movement(model, optimizers)
    squared_error(model, batch).backward()
    expected = {name: -weight.detach() * weight.grad for name, weight in weights_of(model).items()}
    for optimizer in optimizers:
        optimizer.step()
    for name, score in movement.scores().items():
        torch.testing.assert_close(score, expected[name])


def test_masked_weights_do_not_move_and_others_choose_what_goes_next() -> None:
    model, given = net(3, 8, 2), batches(4, 6, 5)
    optimizer = adam(model)
    first = dict(prune_(model, optimizer, sparsity=0.25))
    movement = Movement(model, optimizer)
    for batch in given:
        step(model, optimizer, batch)
    found = movement.scores()
    assert all(not found[name][~mask].any() for name, mask in first.items())
    masks = prune_(model, optimizer, sparsity=0.5, score=found)
    for name, mask in masks.items():
        gone = found[name][first[name] & ~mask]
        assert gone.max() < found[name][mask].min()


def test_movement_goes_on_from_a_checkpoint() -> None:
    given = batches(4, 6, 5)

    def trained(*, is_interrupted: bool) -> dict[str, Tensor]:
        model = net(3, 4, 2)
        optimizer = adam(model)
        movement = Movement(model, optimizer)
        step(model, optimizer, given[0])
        if is_interrupted:
            state = copy.deepcopy(movement.state_dict())
            movement.remove()
            saved = model.state_dict(), optimizer.state_dict()
            model = net(3, 4, 2, seed=9)
            optimizer = adam(model)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            movement = Movement(model, optimizer)
            movement.load_state_dict(state)
        for batch in given[1:]:
            step(model, optimizer, batch)
        assert movement.num_steps == 3
        return movement.scores()

    whole, parts = trained(is_interrupted=False), trained(is_interrupted=True)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_checkpoint_of_other_weights_is_refused() -> None:
    one, other = net(3, 4, 2), net(3, 5, 2)
    optimizer = adam(one)
    movement = Movement(one, optimizer)
    step(one, optimizer, batches(4)[0])
    before = movement.scores()
    with pytest.raises(InvalidInputError, match=r"that of other weights(.|\n)*0\.weight"):
        movement.load_state_dict(Movement(other, adam(other)).state_dict())
    assert all(torch.equal(movement.scores()[name], before[name]) for name in before)


@pytest.mark.parametrize("state", [None, {}, {"num_steps": 3}, torch.ones(2)], ids=str)
def test_what_is_no_checkpoint_is_refused(state: Any) -> None:
    model = net(3, 2)
    with pytest.raises(InvalidInputError, match=r"no saved movement[\s\S]*movement\.state_dict\(\)"):
        Movement(model, adam(model)).load_state_dict(state)


def test_checkpoint_without_its_steps_changes_nothing() -> None:
    model = net(3, 2)
    movement = Movement(model, adam(model))
    state = movement.state_dict()
    with pytest.raises(InvalidInputError, match="no saved movement"):
        movement.load_state_dict({"scores": {name: each + 1 for name, each in state["scores"].items()}})
    assert all(torch.equal(each, state["scores"][name]) for name, each in movement.state_dict()["scores"].items())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copy_that_would_listen_to_nothing_is_refused(copied: Any) -> None:
    model = net(3, 2)
    with pytest.raises(UnsupportedError, match=r"cannot be copied or pickled[\s\S]*load_state_dict"):
        copied(Movement(model, adam(model)))


@pytest.mark.parametrize("optimizer", [None, ["adam"], 3], ids=str)
def test_what_is_no_optimizer_is_refused(optimizer: Any) -> None:
    with pytest.raises(HolderError, match=r"is not an optimizer"):
        Movement(net(3, 2), optimizer)


def test_scores_without_a_step_are_refused() -> None:
    model = net(3, 4, 2)
    with pytest.raises(InvalidInputError, match="there was no optimizer step yet"):
        Movement(model, adam(model)).scores()


def test_weights_without_a_gradient_score_zero() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)}).double()
    optimizer = adam(model)
    movement = Movement(model, optimizer)
    squared_error(model["used"], batches(4)[0]).backward()
    optimizer.step()
    assert movement.scores()["used.weight"].any()
    assert not movement.scores()["unused.weight"].any()


def test_weight_that_no_optimizer_holds_is_refused_before_anything_is_hooked() -> None:
    model = net(3, 4, 2)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    before = whole_state(model)
    with pytest.raises(HolderError, match=r"holds '2\.weight'(.|\n)*not held: 1"):
        Movement(model, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert whole_state(model) == before
    assert list(Movement(model, optimizer, include="0.weight")._sums) == ["0.weight"]


def test_frozen_weight_is_left_out_and_refused_by_name() -> None:
    model = net(3, 4, 2)
    optimizer = adam(model)
    model[0].weight.requires_grad_(False)
    movement = Movement(model, optimizer)
    step(model, optimizer, batches(4)[0])
    assert list(movement.scores()) == ["2.weight"]
    with pytest.raises(InvalidInputError, match=r"'0\.weight' by gradients: it is frozen"):
        Movement(model, optimizer, include="0.weight")


def test_resized_weight_is_refused_at_the_next_step() -> None:
    model = net(3, 4, 2)
    optimizer = adam(model)
    movement = Movement(model, optimizer)
    step(model, optimizer, batches(4)[0])
    resize_(model[0], "weight", dim=1, keep=[0, 2], optimizer=optimizer)
    with pytest.raises(ShapeError, match=r"'0\.weight' has been resized(.|\n)*\(4, 2\)"):
        step(model, optimizer, batches(4, inputs=2)[0])
    movement.remove()
    step(model, optimizer, batches(4, inputs=2)[0])
    assert movement.num_steps == 1
