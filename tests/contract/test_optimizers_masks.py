"""Zero means zero, for every optimizer: whatever it does, masked weights stay exactly 0.0 and nothing else changes.

The oracle is a dense model, trained by the same optimizer in plain torch, whose masked entries are set to zero by hand
after every step. The rows come from the table of optimizers, so that a new member of torch.optim is held to this by
itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import Masks
from tests.contract.optimizer_table import BY_NAME, CASES, OptimizerCase, Problem
from tests.masks.oracles import (
    LEFT_ALONE,
    NEUTRAL,
    bits,
    carried_over,
    halves,
    is_zero,
    moments,
    nonzero_names,
    zero_by_hand,
)

DEPENDENT = ("Adafactor", "LBFGS", "Muon")
"""Optimizers in which the step of a weight depends on others, so that the reference needs masked gradients too."""


def by_case(wanted: Callable[[OptimizerCase], bool] = lambda case: True) -> Any:
    """Parametrize over the rows of the table."""
    return pytest.mark.parametrize("case", [case for case in CASES if wanted(case)], ids=lambda case: case.name)


def warmed_up(case: OptimizerCase, dtype: torch.dtype = torch.float32, steps: int = 3) -> tuple[Problem, Optimizer]:
    """A problem that has been trained for some steps without masks."""
    problem = case.problem(dtype)
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(steps))
    return problem, optimizer


def twin(case: OptimizerCase, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Copies of both that have nothing to do with the originals; a deep copy of LBFGS cannot step in torch 2.14."""
    copied = copy.deepcopy(model)
    its_optimizer = case.make(copied.parameters())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return copied, its_optimizer


def assert_kept_equal(model: nn.Module, reference: nn.Module, masks: Mapping[str, Tensor]) -> None:
    for (name, parameter), (_, other) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        assert bits(parameter) == bits(other), name
    assert nonzero_names(reference, masks) == []


@pytest.mark.parametrize("steps_before", [0, 3])
@by_case()
def test_masked_weights_are_zero_after_every_step(case: OptimizerCase, steps_before: int) -> None:
    problem, optimizer = warmed_up(case, steps=steps_before)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    before = {name: problem.model.get_parameter(name).detach().clone() for name in masks}
    for step in range(5):
        case.train(problem.model, optimizer, problem, [step])
        assert nonzero_names(problem.model, masks) == []
        assert carried_over(optimizer, problem.model, masks) == []
    for name, mask in masks.items():
        moved = problem.model.get_parameter(name).detach()[mask] != before[name][mask]
        assert bool(moved.any()), f"{name} has stopped to learn"


@pytest.mark.parametrize("steps_before", [0, 3])
@by_case(lambda case: case.kind.__name__ not in DEPENDENT)
def test_kept_weights_train_as_in_a_dense_model_with_zeros_by_hand(case: OptimizerCase, steps_before: int) -> None:
    problem, optimizer = warmed_up(case, steps=steps_before)
    reference, its_optimizer = twin(case, problem.model, optimizer)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    zero_by_hand(reference, masks)
    for step in range(5):
        case.train(problem.model, optimizer, problem, [step])
        case.train(reference, its_optimizer, problem, [step])
        zero_by_hand(reference, masks)
        assert_kept_equal(problem.model, reference, masks)


@by_case(lambda case: case.kind.__name__ in DEPENDENT)
def test_kept_weights_train_as_with_masked_gradients_by_hand(case: OptimizerCase) -> None:
    problem = case.problem()
    masks = halves(problem.model)
    reference = copy.deepcopy(problem.model)
    optimizer, its_optimizer = case.make(problem.model.parameters()), case.make(reference.parameters())
    Masks.from_dict(problem.model, masks, optimizer)
    zero_by_hand(reference, masks)
    for name, mask in masks.items():
        reference.get_parameter(name).register_hook(partial(torch.where, mask, other=torch.tensor(0.0)))
    for step in range(5):
        case.train(problem.model, optimizer, problem, [step])
        case.train(reference, its_optimizer, problem, [step])
        zero_by_hand(reference, masks)
        assert_kept_equal(problem.model, reference, masks)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@by_case(lambda case: not case.needs_sparse)
def test_nonfinite_gradients_of_masked_weights_change_nothing(case: OptimizerCase, value: float) -> None:
    problem, optimizer = warmed_up(case, steps=0)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    reference, its_optimizer = twin(case, problem.model, optimizer)
    for name, mask in masks.items():
        parameter = problem.model.get_parameter(name)
        parameter.register_hook(lambda gradient, mask=mask: torch.where(mask, gradient, torch.tensor(value)))
    for step in range(3):
        case.train(problem.model, optimizer, problem, [step])
        case.train(reference, its_optimizer, problem, [step])
        assert_kept_equal(problem.model, reference, masks)
        assert carried_over(optimizer, problem.model, masks) == []


@by_case(lambda case: not case.needs_sparse)
def test_zeros_hold_after_clipping_by_a_norm_that_is_nan(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    first = next(iter(masks))

    def clipped_loss_step(step: int) -> None:
        @torch.enable_grad()  # which transformers' Adafactor leaves to the closure
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = problem.loss(problem.model, step)
            loss.backward()
            with torch.no_grad():
                problem.model.get_parameter(first).grad[masks[first]] = torch.nan
            norm = nn.utils.clip_grad_norm_(problem.model.parameters(), 1.0)
            assert norm.isnan()
            return loss

        optimizer.step(closure)

    clipped_loss_step(0)
    assert nonzero_names(problem.model, masks) == []
    assert carried_over(optimizer, problem.model, masks) == []


@by_case(lambda case: not case.needs_sparse)
def test_clipping_sees_gradients_of_kept_weights_only(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    gradients = torch.autograd.grad(problem.loss(problem.model, 0), list(problem.model.parameters()))
    kept = [
        gradient[masks[name]] if name in masks else gradient.flatten()
        for (name, _), gradient in zip(problem.model.named_parameters(), gradients, strict=True)
    ]
    optimizer.zero_grad()
    problem.loss(problem.model, 0).backward()
    norm = nn.utils.clip_grad_norm_(problem.model.parameters(), 1e9)
    torch.testing.assert_close(norm, torch.cat(kept).norm())


@by_case(lambda case: not case.needs_closure)
def test_gradients_may_be_accumulated(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        for step in range(2):
            (problem.loss(problem.model, step) / 2).backward()
            assert all(is_zero(problem.model.get_parameter(n).grad.to_dense()[~mask]) for n, mask in masks.items())
        optimizer.step()
        assert nonzero_names(problem.model, masks) == []


@by_case(lambda case: not case.needs_closure and not case.needs_sparse)
def test_gradient_scaler_holds_zeros_when_it_steps_and_when_it_skips(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for step in range(4):
        optimizer.zero_grad()
        loss = scaler.scale(problem.loss(problem.model, step))
        (loss * torch.inf if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert nonzero_names(problem.model, masks) == []
        assert carried_over(optimizer, problem.model, masks) == []
    assert scaler.get_scale() == 2.0**19, "the second step was to be skipped"


def takes_eps_zero(case: OptimizerCase) -> bool:
    """Whether there is an eps, one number, that torch lets be 0."""
    return isinstance(case.make([nn.Parameter(torch.zeros(2, 2))]).defaults.get("eps"), float) and not case.needs_sparse


@by_case(takes_eps_zero)
def test_zeros_hold_with_eps_zero(case: OptimizerCase) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters(), eps=0.0)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    for step in range(3):
        case.train(problem.model, optimizer, problem, [step])
        assert nonzero_names(problem.model, masks) == []
        assert carried_over(optimizer, problem.model, masks) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@by_case()
def test_zeros_hold_in_other_dtypes(case: OptimizerCase, dtype: torch.dtype) -> None:
    problem, optimizer = warmed_up(case, dtype)
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    for step in range(3):
        case.train(problem.model, optimizer, problem, [step])
        assert nonzero_names(problem.model, masks) == []
        assert carried_over(optimizer, problem.model, masks) == []


class Large(nn.Module):
    """A weight of 90,000 entries: large enough not to be masked as a whole after every step."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(300, 300))
        self.sparse = sparse

    def forward(self, target: Tensor) -> Tensor:
        return (nn.functional.embedding(torch.arange(300), self.weight, sparse=self.sparse) - target).pow(2).mean()


def large_step(case: OptimizerCase, model: nn.Module, optimizer: Optimizer, step: int) -> None:
    target = torch.randn(300, 300, generator=torch.Generator().manual_seed(step))
    case.step(optimizer, lambda: 100 * model(target))


@by_case()
def test_large_tensors_keep_zeros_and_train_as_with_zeros_by_hand(case: OptimizerCase) -> None:
    model = Large(sparse=case.needs_sparse)
    optimizer = case.make(model.parameters())
    for step in range(2):
        large_step(case, model, optimizer, step)
    reference, its_optimizer = twin(case, model, optimizer)
    masks = halves(model)
    Masks.from_dict(model, masks, optimizer)
    zero_by_hand(reference, masks)
    for step in range(4):
        large_step(case, model, optimizer, step)
        large_step(case, reference, its_optimizer, step)
        zero_by_hand(reference, masks)
        assert nonzero_names(model, masks) == []
        assert carried_over(optimizer, model, masks) == []
        if case.kind.__name__ not in DEPENDENT:
            assert_kept_equal(model, reference, masks)


@by_case(lambda case: not case.needs_sparse and not case.needs_closure)
def test_large_tensors_keep_zeros_when_gradients_are_written_to_unseen(case: OptimizerCase) -> None:
    model = Large(sparse=False)
    optimizer = case.make(model.parameters())
    masks = halves(model)
    Masks.from_dict(model, masks, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(300, 300)).backward()
        model.weight.grad.data.add_(torch.randn(300, 300))
        optimizer.step()
        assert nonzero_names(model, masks) == []
        assert carried_over(optimizer, model, masks) == []
        model.weight.data.add_(torch.randn(300, 300))
        model.weight.grad = torch.full((300, 300), float("nan" if step == 1 else "inf"))
        optimizer.step()
        assert nonzero_names(model, masks) == []
        assert carried_over(optimizer, model, masks) == []


@by_case()
def test_state_of_a_dense_run_may_be_loaded(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    dense, its_optimizer = twin(case, problem.model, optimizer)
    case.train(dense, its_optimizer, problem, range(4))
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    case.train(problem.model, optimizer, problem, [0])
    optimizer.load_state_dict(its_optimizer.state_dict())
    case.train(problem.model, optimizer, problem, [1])
    assert nonzero_names(problem.model, masks) == []
    assert carried_over(optimizer, problem.model, masks) == []


@by_case(lambda case: not case.needs_closure)
def test_copy_trains_like_the_original_and_leaves_it_alone(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = Masks.from_dict(problem.model, halves(problem.model), optimizer)
    case.train(problem.model, optimizer, problem, [0])
    model, its_optimizer, its_masks = copy.deepcopy((problem.model, optimizer, masks))
    before = [bits(p) for p in problem.model.parameters()]
    case.train(model, its_optimizer, problem, range(3))
    assert [bits(p) for p in problem.model.parameters()] == before
    assert its_masks == masks
    assert its_masks.model is model
    case.train(problem.model, optimizer, problem, range(3))
    assert_kept_equal(model, problem.model, dict(masks))


@by_case()
def test_resumed_run_equals_the_uninterrupted_one(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    masks = Masks.from_dict(problem.model, halves(problem.model), optimizer)
    case.train(problem.model, optimizer, problem, [0])
    saved = copy.deepcopy((problem.model.state_dict(), optimizer.state_dict(), masks.state_dict()))
    fresh = case.problem(seed=1).model
    its_optimizer = case.make(fresh.parameters())
    its_optimizer.load_state_dict(saved[1])
    Masks(fresh).load_state_dict(saved[2])
    fresh.load_state_dict(saved[0])
    for step in range(3):
        case.train(problem.model, optimizer, problem, [step])
        case.train(fresh, its_optimizer, problem, [step])
        assert_kept_equal(fresh, problem.model, dict(masks))


def fresh_moments(case: OptimizerCase, parameter: Tensor, present: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the entries hold for a weight without history: 0, but for Rprop's step and Adagrad's sum."""
    options = case.make([parameter]).defaults
    known = {"step_size": options["lr"], "sum": options.get("initial_accumulator_value", 0.0)}
    return {entry: torch.full_like(value, float(known.get(entry, 0.0))) for entry, value in present.items()}


@by_case()
def test_regrown_weights_start_at_zero_without_history(case: OptimizerCase) -> None:
    problem, optimizer = warmed_up(case)
    name, old = next(iter(halves(problem.model).items()))
    masks = Masks.from_dict(problem.model, {name: old}, optimizer)
    case.train(problem.model, optimizer, problem, range(2))
    parameter = problem.model.get_parameter(name)
    weights = parameter.detach().clone()
    before = {entry: value.clone() for entry, value in moments(optimizer, parameter).items()}
    new = halves(problem.model, seed=1)[name]
    new[1] |= ~old[1]

    masks.update_({name: new})

    stayed, grown, dropped = old & new, new & ~old, old & ~new
    assert grown.any()
    assert dropped.any()
    assert torch.equal(parameter.detach(), torch.where(stayed, weights, torch.zeros_like(weights)))
    fresh = fresh_moments(case, parameter, before)
    for entry, value in moments(optimizer, parameter).items():
        assert torch.equal(value[stayed], before[entry][stayed]), entry
        assert torch.equal(value[grown], fresh[entry][grown]), entry
        assert entry in LEFT_ALONE or is_zero(value[dropped]), entry
    case.train(problem.model, optimizer, problem, [2])
    assert nonzero_names(problem.model, {name: new}) == []
    moved = parameter.detach()[grown] != 0
    assert bool(moved.any()) or case.needs_sparse


@pytest.mark.parametrize("way", ["remove", "load", "attach", "resume"])
@by_case()
def test_released_weights_have_no_history(case: OptimizerCase, way: str) -> None:
    problem, optimizer = warmed_up(case)
    made = halves(problem.model)
    masks = Masks.from_dict(problem.model, made, optimizer)
    case.train(problem.model, optimizer, problem, range(2))
    parameters = {name: problem.model.get_parameter(name) for name in made}
    before = {name: values_of(optimizer, parameter) for name, parameter in parameters.items()}
    if way in ("attach", "resume"):
        loaded = copy.deepcopy(optimizer.state_dict())
        optimizer = case.make(problem.model.parameters())
        optimizer.load_state_dict(loaded)
    if way == "attach":
        masks.attach(optimizer)
    if way == "load":
        masks.load_state_dict({})
    else:
        masks.remove()

    for name, mask in made.items():
        fresh = fresh_moments(case, parameters[name], before[name])
        after = values_of(optimizer, parameters[name])
        assert after.keys() == before[name].keys()
        for entry, value in after.items():
            assert torch.equal(value[mask], before[name][entry][mask]), entry
            assert torch.equal(value[~mask], fresh[entry][~mask]), entry
    case.train(problem.model, optimizer, problem, range(2))
    for name, mask in made.items():
        moved = parameters[name].detach()[~mask] != 0
        assert bool(moved.any()) or case.needs_sparse


def values_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Copies of the entries with one value a weight, as the optimizer saves them."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    state = optimizer.state_dict()["state"].get(next(i for i, p in enumerate(held) if p is parameter), {})
    return {
        name: value.clone()
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    }


def test_second_moments_are_neutral_where_zeros_would_be_slow() -> None:
    seen = set()
    for case in CASES:
        problem, optimizer = warmed_up(case)
        masks = halves(problem.model)
        Masks.from_dict(problem.model, masks, optimizer)
        case.train(problem.model, optimizer, problem, range(2))
        for name, mask in masks.items():
            for entry, value in moments(optimizer, problem.model.get_parameter(name)).items():
                if entry in NEUTRAL:
                    seen.add(entry)
                    assert bool((value[~mask] > 0.5).all()), f"{case.name}: {entry}"
    assert seen == NEUTRAL


def test_optimizers_named_in_these_tests_exist() -> None:
    names = {case.kind.__name__ for case in BY_NAME.values()}
    assert names >= set(DEPENDENT)
