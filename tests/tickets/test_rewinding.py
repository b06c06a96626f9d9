"""Rewinding: weights of before bit for bit, masked ones 0, and a training from there as if nothing had come between."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from secateur import HolderError, InvalidInputError, Masks, UnsupportedError, prune_, scores
from secateur.tickets import Snapshot, rewind_, rewind_learning_rate_
from tests.contract.optimizer_table import CASES, OptimizerCase
from tests.masks.oracles import bits, halves, is_zero, snapshot
from tests.tickets.models import Normed, train, values

BY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: bits(parameter) for name, parameter in model.named_parameters()}


def trained(case: OptimizerCase, problem: Any, optimizer: Any, steps: range) -> list[dict[str, bytes]]:
    """The weights after each of some steps."""
    found = []
    for step in steps:
        case.train(problem.model, optimizer, problem, [step])
        found.append(weights(problem.model))
    return found


@BY_CASE
def test_training_from_a_rewound_start_is_that_of_a_fresh_model(case: OptimizerCase) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    start = Snapshot.of(problem.model)
    first = trained(case, problem, optimizer, range(3))
    rewind_(problem.model, start, optimizer)
    assert trained(case, problem, optimizer, range(3)) == first


@BY_CASE
def test_masked_training_from_a_rewound_start_is_that_of_a_fresh_masked_model(case: OptimizerCase) -> None:
    problem, reference = case.problem(), case.problem()
    optimizer = case.make(problem.model.parameters())
    start = Snapshot.of(problem.model)
    case.train(problem.model, optimizer, problem, range(3))
    masks = halves(problem.model)
    Masks.from_dict(problem.model, masks, optimizer)
    rewind_(problem.model, start, optimizer)
    Masks.from_dict(reference.model, masks)
    its_optimizer = case.make(reference.model.parameters())
    assert trained(case, problem, optimizer, range(4)) == trained(case, reference, its_optimizer, range(4))


@pytest.mark.parametrize("through_file", [False, True])
@BY_CASE
def test_training_from_a_rewound_step_with_its_state_is_the_same_again(
    case: OptimizerCase, through_file: bool, tmp_path: Path
) -> None:
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    case.train(problem.model, optimizer, problem, range(2))
    then = Snapshot.of(problem.model, optimizer, step=2)
    if through_file:
        then.save(tmp_path / "then")
        then = Snapshot.load(tmp_path / "then")
    first = trained(case, problem, optimizer, range(2, 5))
    rewind_(problem.model, then, optimizer, state=True)
    assert trained(case, problem, optimizer, range(2, 5)) == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_kept_weights_are_bit_equal_and_masked_ones_exactly_zero(dtype: torch.dtype) -> None:
    model = nn.ParameterDict({"w": nn.Parameter(torch.randn(6, 5).to(dtype))})
    with torch.no_grad():
        model["w"][0, 0], model["w"][1, 1] = -0.0, torch.inf
    start = Snapshot.of(model)
    masks = Masks.from_dict(model, {"w": torch.rand(6, 5) > 0.5})
    with torch.no_grad():
        model["w"].mul_(3)
    rewind_(model, start)
    mask = masks["w"]
    assert bits(model["w"].detach()[mask]) == bits(start.parameters["w"][mask])
    assert is_zero(model["w"].detach()[~mask])


def test_infinite_value_at_a_masked_place_of_the_snapshot_is_zero() -> None:
    layer = nn.Linear(3, 2)
    start = Snapshot.of(layer)
    start.parameters["weight"].fill_(torch.nan)
    masks = prune_(layer, sparsity=0.5)
    rewind_(layer, start)
    assert is_zero(layer.weight.detach()[~masks["weight"]])
    assert bool(layer.weight.detach()[masks["weight"]].isnan().all())


def test_parameters_stay_the_same_objects_and_lose_their_gradients() -> None:
    model = Normed()
    start = Snapshot.of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    before = [(id(p), p.requires_grad) for p in model.parameters()]
    rewind_(model, start, optimizer)
    assert [(id(p), p.requires_grad) for p in model.parameters()] == before
    assert [p.grad for p in model.parameters()] == [None] * len(before)


@pytest.mark.parametrize("buffers", [False, True])
def test_running_statistics_go_back_when_asked(buffers: bool) -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    then, calls = Snapshot.of(model), model.calls.item()
    train(model, optimizer, range(2, 4))
    now = {name: bits(buffer) for name, buffer in model.norm.named_buffers()}
    rewind_(model, then, optimizer, buffers=buffers)
    back = {name: bits(then.buffers[f"norm.{name}"]) for name in now}
    assert now != back
    assert {name: bits(buffer) for name, buffer in model.norm.named_buffers()} == (back if buffers else now)
    assert model.calls.item() == calls + 2


def test_only_chosen_parameters_and_their_state_go_back() -> None:
    model = Normed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = Snapshot.of(model)
    train(model, optimizer, range(2))
    now = weights(model)
    rewind_(model, start, optimizer, include=["conv.*", nn.Linear], exclude="*.bias")
    back = {name for name, value in weights(model).items() if value != now[name]}
    assert back == {"conv.weight", "head.weight"}
    assert all(bits(model.get_parameter(name)) == bits(start.parameters[name]) for name in back)
    assert {name for name, p in model.named_parameters() if p not in optimizer.state} == back


def test_lbfgs_loses_its_whole_history() -> None:
    case = next(case for case in CASES if case.kind is torch.optim.LBFGS)
    problem = case.problem()
    optimizer = case.make(problem.model.parameters())
    start = Snapshot.of(problem.model)
    case.train(problem.model, optimizer, problem, range(2))
    rewind_(problem.model, start, optimizer, include="last.bias")
    assert not optimizer.state


def test_optimizer_that_is_not_named_keeps_its_state_and_options_stay() -> None:
    model = Normed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = Snapshot.of(model, optimizer)
    train(model, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.5
    state = snapshot(optimizer)[0][1]
    rewind_(model, start)
    assert snapshot(optimizer)[0][1] == state
    rewind_(model, start, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_tied_parameter_goes_back_once_and_stays_tied() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["table"].weight
    start = Snapshot.of(model)
    before = bits(model["table"].weight)
    masks = prune_(model, sparsity=0.5)
    rewind_(model, start, include="head.weight")
    assert model["head"].weight is model["table"].weight
    assert bits(model["table"].weight.detach()) == bits(
        start.parameters["table.weight"].masked_fill(~masks["table.weight"], 0.0)
    )
    masks.remove()
    rewind_(model, start)
    assert bits(model["table"].weight) == before


def test_random_numbers_go_back_when_asked() -> None:
    model = nn.Dropout()
    then = Snapshot.of(model, random_state=True)
    first = model(torch.ones(40))
    rewind_(model, then)
    other = model(torch.ones(40))
    rewind_(model, then, random_state=True)
    assert torch.equal(model(torch.ones(40)), first)
    assert not torch.equal(other, first)


def test_snapshot_of_one_model_rewinds_another_of_its_class() -> None:
    model, other = Normed(), Normed()
    rewind_(other, Snapshot.of(model), buffers=True)
    assert values(other) == values(model)


def test_snapshot_survives_being_rewound_to() -> None:
    model = Normed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, range(1))
    then = Snapshot.of(model, optimizer)
    before = weights(model)
    for _ in range(2):
        rewind_(model, then, optimizer, state=True)
        assert weights(model) == before
        assert bits(then.optimizers[0].state["head.weight"]["exp_avg"]) == bits(
            optimizer.state[model.head.weight]["exp_avg"]
        )
        train(model, optimizer, range(2))


def test_learning_rate_that_is_a_tensor_stays_the_same_object() -> None:
    model = Normed()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
    then = Snapshot.of(model, optimizer)
    rate = optimizer.param_groups[0]["lr"]
    rate.fill_(0.5)
    rewind_learning_rate_(then, optimizer)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.01)


def test_learning_rate_rewinding_leaves_weights_momenta_and_masks() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    then = Snapshot.of(model, optimizer, scheduler=scheduler, step=7)
    prune_(model, optimizer, sparsity=0.5)
    train(model, optimizer, range(2))
    scheduler.step()
    before = snapshot(model), snapshot(optimizer)[0][1]
    assert rewind_learning_rate_(then, optimizer, scheduler) == 7
    assert (snapshot(model), snapshot(optimizer)[0][1]) == before
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.1


def test_schedulers_do_not_write_into_the_snapshot() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    then = Snapshot.of(model, optimizer, scheduler=scheduler)
    rewind_learning_rate_(then, optimizer, scheduler)
    scheduler.base_lrs[0] = 0.5
    scheduler.milestones[3] = 1
    assert then.schedulers[0]["base_lrs"] == [0.1]
    assert then.schedulers[0]["milestones"] == {2: 1, 4: 1}


# ---- what is refused


def test_rewinding_without_a_snapshot_is_refused() -> None:
    model = Normed()
    before = snapshot(model)
    with pytest.raises(InvalidInputError, match=r"no snapshot to rewind to[\s\S]*Snapshot\.of\(model\)"):
        rewind_(model, None)
    with pytest.raises(InvalidInputError, match="a state_dict shares its memory with the model"):
        rewind_(model, model.state_dict())
    with pytest.raises(InvalidInputError, match="no snapshot to rewind to"):
        rewind_learning_rate_(None, torch.optim.SGD(model.parameters(), lr=0.1))
    assert snapshot(model) == before


def test_what_a_snapshot_does_not_hold_is_refused() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    bare, full = Snapshot.of(model), Snapshot.of(model, optimizer)
    before = snapshot(model, optimizer)
    with pytest.raises(InvalidInputError, match="does not hold the state of these optimizers"):
        rewind_(model, bare, optimizer, state=True)
    with pytest.raises(InvalidInputError, match="does not hold the state of these optimizers"):
        rewind_learning_rate_(bare, optimizer)
    with pytest.raises(InvalidInputError, match="holds no random state"):
        rewind_(model, full, random_state=True)
    with pytest.raises(InvalidInputError, match="taken with other things"):
        rewind_learning_rate_(full, optimizer, scheduler)
    with pytest.raises(InvalidInputError, match="taken with other things"):
        rewind_learning_rate_(bare, None)
    assert snapshot(model, optimizer) == before


def test_other_optimizers_are_refused() -> None:
    model = Normed()
    full = Snapshot.of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    adam = torch.optim.Adam(model.parameters())
    groups = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    before = snapshot(model, adam, groups)
    for optimizer in (adam, groups):
        with pytest.raises(HolderError, match="holds another optimizer's state"):
            rewind_(model, full, optimizer, state=True)
        with pytest.raises(HolderError, match="holds another optimizer's state"):
            rewind_learning_rate_(full, optimizer)
    with pytest.raises(HolderError, match="made for another model"):
        rewind_(model, full, torch.optim.Adam(Normed().parameters()))
    assert snapshot(model, adam, groups) == before


def test_optimizers_in_another_order_are_refused_before_anything_changes() -> None:
    model = Normed()
    one, other = (torch.optim.Adam(part.parameters()) for part in (model.conv, model.head))
    train(model, one, range(1))
    train(model, other, range(1))
    then = Snapshot.of(model, [one, other])
    before = snapshot(model, one, other)
    with pytest.raises(HolderError, match=r"another optimizer's parameters[\s\S]*conv\.weight[\s\S]*head\.weight"):
        rewind_(model, then, [other, one], state=True)
    assert snapshot(model, one, other) == before


def test_scheduler_of_another_class_is_refused_before_anything_changes() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    then = Snapshot.of(model, optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3))
    other = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    optimizer.param_groups[0]["lr"] = 0.03
    before = snapshot(optimizer), copy.deepcopy(other.state_dict())
    with pytest.raises(HolderError, match=r"another scheduler's state[\s\S]*StepLR    scheduler: CosineAnnealingLR"):
        rewind_learning_rate_(then, optimizer, other)
    assert (snapshot(optimizer), other.state_dict()) == before


def test_tensor_that_cannot_be_written_to_is_refused_before_anything_changes() -> None:
    model = Normed()
    model.register_buffer("shared", torch.ones(1).expand(4))
    start = Snapshot.of(model)
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=r"cannot rewind 'shared': several of its entries[\s\S]*clone"):
        rewind_(model, start, buffers=True)
    assert snapshot(model) == before
    model.head.bias = nn.Parameter(torch.ones(1).expand(3))
    before = snapshot(model)
    with pytest.raises(UnsupportedError, match=r"cannot rewind 'head\.bias'"):
        rewind_(model, start)
    assert snapshot(model) == before
    rewind_(model, start, exclude="head.bias")


def test_selector_without_a_match_and_calls_in_inference_mode_are_refused() -> None:
    model = Normed()
    start = Snapshot.of(model)
    with torch.inference_mode():
        made_inside = Normed()
    before = snapshot(model)
    with pytest.raises(InvalidInputError, match="matches no parameter"):
        rewind_(model, start, include="encoder.*")
    with torch.inference_mode(), pytest.raises(InvalidInputError, match="inference_mode"):
        rewind_(model, start)
    with pytest.raises(UnsupportedError, match=r"cannot rewind 'conv\.weight'"):
        rewind_(made_inside, start)
    assert snapshot(model) == before


def test_deep_copy_of_a_masked_model_is_rewound_by_itself() -> None:
    model = Normed()
    start = Snapshot.of(model)
    prune_(model, sparsity=0.5, score=partial(scores.random, seed=1))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in (*model.parameters(), *copied.parameters()):
            parameter.mul_(2)
    before = values(model)
    rewind_(copied, start)
    assert values(model) == before
    mask = Masks(copied)["head.weight"]
    assert bits(copied.head.weight) == bits(start.parameters["head.weight"].masked_fill(~mask, 0.0))
