"""Every method of sparse training with every optimizer: counts, zeros, fresh state, resuming, and nothing left behind.

The rows come from the tables of methods and of optimizers, so that a new one of either is held to this by itself. The
usual optimizers meet every method in every test; each of the others meets one, another one in each test. All others of
the product are slow, by their number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from secateur import Masks
from secateur.dst import METHODS
from tests.contract.optimizer_table import BY_NAME, CASES, OptimizerCase, Problem
from tests.contract.test_optimizers_masks import twin
from tests.dst.methods import END, changes, make
from tests.masks.oracles import LEFT_ALONE, bits, carried_over, is_zero, moments, nonzero_names, snapshot

MOVING = [name for name in METHODS if changes(name)]
BY_GRADIENT = ["rigl", "granet"]
USUAL = ["SGD-momentum-foreach", "AdamW-amsgrad-fused", "Adam-loop", "RMSprop-centered-foreach", "Adafactor-foreach"]

by_method = pytest.mark.parametrize("method", METHODS)


def by_pair(methods: Iterable[str], *, turn: int, wanted: Callable[[OptimizerCase], bool] = lambda case: True) -> Any:
    """Parametrize over the product of the tables; `turn` says which method an optimizer meets that is not usual."""
    pairs = []
    for number, case in enumerate(filter(wanted, CASES)):
        for place, method in enumerate(names := list(methods)):
            meets = case.name in USUAL or place == (number + turn) % len(names)
            name = f"{case.name}-{method}"
            pairs.append(pytest.param(case, method, id=name, marks=() if meets else pytest.mark.slow))
    return pytest.mark.parametrize(("case", "method"), pairs)


def usual() -> Any:
    return pytest.mark.parametrize("case", [BY_NAME[name] for name in USUAL], ids=USUAL)


def begun(case: OptimizerCase, method: str, *, steps_before: int = 2, **options: Any) -> tuple[Problem, Any, Any]:
    """A problem trained for some steps without masks, its optimizer, and the method that has just been attached."""
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(steps_before))
    return problem, optimizer, make(method, problem.model, optimizer, **options)


@by_pair(METHODS, turn=0)
def test_zeros_and_counts_hold_through_all_changes(case: OptimizerCase, method: str) -> None:
    problem, optimizer, training = begun(case, method)
    layers: list[dict[str, int]] = []
    for step in range(END + 2):
        case.train(problem.model, optimizer, problem, [step])
        masks = dict(training.masks)
        assert nonzero_names(problem.model, masks) == []
        assert carried_over(optimizer, problem.model, masks) == []
        layers.append({name: int((~mask).sum()) for name, mask in masks.items()})
    assert training.masks.num_zeros() == round(0.5 * sum(mask.numel() for mask in masks.values()))
    assert [change.step for change in training.history] == [0, *changes(method)]
    for before, after in pairwise(layers):
        assert all(before[name] <= after[name] for name in before), "sparsity may only rise"
    if method not in ("gradual", "granet"):
        assert layers[0] == layers[-1]


@by_pair(MOVING, turn=1)
def test_what_changes_is_fresh_and_all_else_keeps_every_bit(case: OptimizerCase, method: str) -> None:
    problem, optimizer, training = begun(case, method)
    case.train(problem.model, optimizer, problem, [0])
    held, its_optimizer = twin(case, problem.model, optimizer)  # the masks of a copy stay as they are
    before = dict(training.masks)
    case.train(held, its_optimizer, problem, [1])
    case.train(problem.model, optimizer, problem, [1])
    num_changed = 0
    for name, after in training.masks.items():
        stayed, changed = before[name] & after, before[name] ^ after
        num_changed += int(changed.sum())
        weight, other = problem.model.get_parameter(name), held.get_parameter(name)
        assert bits(weight.detach()[stayed]) == bits(other.detach()[stayed])
        assert is_zero(weight.detach()[~stayed])
        its_moments = moments(its_optimizer, other)
        for entry, value in moments(optimizer, weight).items():
            value = value.to_dense()
            assert bits(value[stayed]) == bits(its_moments[entry].to_dense()[stayed]), entry
            grown = value[after & ~before[name]]
            if entry == "step_size":  # of Rprop, which starts at the learning rate
                assert bool((grown == torch.as_tensor(optimizer.param_groups[0]["lr"])).all())
            else:
                assert bool((grown == case.arguments.get("initial_accumulator_value", 0.0)).all()), entry
            if entry not in LEFT_ALONE:
                assert is_zero(value[before[name] & ~after]), entry
    assert num_changed


@by_pair(BY_GRADIENT, turn=0, wanted=lambda case: not case.needs_closure)
def test_growth_takes_the_largest_dense_gradients_summed_over_micro_batches(case: OptimizerCase, method: str) -> None:
    problem, optimizer, training = begun(case, method)
    case.train(problem.model, optimizer, problem, [0])
    before = dict(training.masks)
    sign = -1.0 if case.maximizes else 1.0
    losses = [sign * problem.loss(problem.model, step) for step in range(3)]
    dense = {name: torch.zeros_like(problem.model.get_parameter(name)) for name in before}
    for loss in losses:
        gradients = torch.autograd.grad(loss, [problem.model.get_parameter(name) for name in before], retain_graph=True)
        for name, gradient in zip(before, gradients, strict=True):
            dense[name] += gradient.to_dense()
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
        for name, mask in before.items():
            assert is_zero(problem.model.get_parameter(name).grad.to_dense()[~mask]), "clipping would see it"
    optimizer.step()
    for name, after in training.masks.items():
        grown = after & ~before[name]
        if bool(grown.any()):
            others = dense[name][~before[name] & ~after].abs()
            assert dense[name][grown].abs().min() >= others.max()
    assert any(bool((after & ~before[name]).any()) for name, after in training.masks.items())


@by_pair(METHODS, turn=2)
def test_resumed_training_equals_the_uninterrupted_one(case: OptimizerCase, method: str) -> None:
    problem, optimizer, training = begun(case, method)
    case.train(problem.model, optimizer, problem, range(5))  # two changes are over, and one is next
    saved = copy.deepcopy((problem.model.state_dict(), optimizer.state_dict(), training.state_dict()))
    model = case.problem(seed=1).model
    its_optimizer = case.make(model.parameters())
    its = make(method, model, its_optimizer)
    model.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    its.load_state_dict(saved[2])
    case.train(model, its_optimizer, problem, range(5, END))
    case.train(problem.model, optimizer, problem, range(5, END))
    assert dict_bits(model) == dict_bits(problem.model)
    assert its.masks == training.masks
    assert (its.step, list(its.history)) == (training.step, list(training.history))


def dict_bits(model: nn.Module) -> dict[str, bytes]:
    return {name: bits(parameter) for name, parameter in model.named_parameters()}


@by_method
@usual()
def test_state_is_plain_and_loads_in_any_order(case: OptimizerCase, method: str, tmp_path: Any) -> None:
    problem, optimizer, training = begun(case, method)
    case.train(problem.model, optimizer, problem, range(4))
    path = tmp_path / "checkpoint.pt"
    torch.save((problem.model.state_dict(), optimizer.state_dict(), training.state_dict()), path)
    case.train(problem.model, optimizer, problem, range(4, END + 1))
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]):
        model = case.problem(seed=1).model
        its_optimizer = case.make(model.parameters())
        its = make(method, model, its_optimizer)
        saved = torch.load(path, weights_only=True)
        for part in order:
            (model, its_optimizer, its)[part].load_state_dict(saved[part])
        case.train(model, its_optimizer, problem, range(4, END + 1))
        assert dict_bits(model) == dict_bits(problem.model), order


@pytest.mark.parametrize("method", MOVING)
@usual()
def test_removal_leaves_masks_in_force_and_nothing_else(case: OptimizerCase, method: str) -> None:
    problem, optimizer, training = begun(case, method)
    case.train(problem.model, optimizer, problem, range(3))
    training.remove()
    other = case.problem().model
    other.load_state_dict(problem.model.state_dict())
    Masks.from_dict(other, dict(training.masks))
    assert snapshot(problem.model)[0][1] == snapshot(other)[0][1], "hooks"
    before = dict(training.masks)
    case.train(problem.model, optimizer, problem, range(3, END + 2))
    assert all(torch.equal(mask, before[name]) for name, mask in training.masks.items())
    assert nonzero_names(problem.model, before) == []
    assert training.step == 3
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_step_pre_hooks
    training.masks.remove()
    make(method, problem.model, optimizer)


@by_method
def test_other_random_states_are_left_alone(method: str) -> None:
    case = BY_NAME["SGD-momentum-foreach"]
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    before = torch.get_rng_state()
    make(method, problem.model, optimizer)
    case.train(problem.model, optimizer, problem, range(END))
    assert torch.equal(torch.get_rng_state(), before)
