"""Methods stay attached to the weights, whatever becomes of optimizers, parameters and the method itself."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from secateur import HolderError, prune_
from secateur.dst import METHODS, SRSTE
from tests.dst.methods import changes, make, net, step
from tests.masks.oracles import bits, nonzero_names, snapshot

MOVING = [name for name in METHODS if changes(name)]
by_moving = pytest.mark.parametrize("method", MOVING)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# ---- whose steps count


@by_moving
def test_steps_count_on_when_the_first_layer_is_frozen_and_left_out(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    step(model, optimizer)
    model[0].requires_grad_(False)
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    for _ in range(3):
        step(model, optimizer)
    assert (training.step, training.history[-1].step) == (4, 4)
    assert training.history[-1].layers["2.weight"].num_dropped


@by_moving
def test_first_layer_that_no_optimizer_holds_costs_one_step(method: str) -> None:
    model = net()
    training = make(method, model)
    optimizer = sgd(model[2].parameters())
    for number in range(5):
        step(model, optimizer)
        assert training.step == number


def test_optimizers_that_step_inside_the_backward_pass_make_one_step_together() -> None:
    model = net()
    training = make("rigl", model)
    optimizers = {parameter: sgd([parameter]) for parameter in model.parameters()}

    def now(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(now)
    for number in range(1, 6):
        model(torch.randn(8, 6)).pow(2).mean().backward()
        assert training.step == number
        assert nonzero_names(model, dict(training.masks)) == []
    assert all(layer.num_grown for layer in training.history[-1].layers.values())


@pytest.mark.parametrize("method", ["set", "granet"])
def test_nothing_is_grown_in_a_layer_that_was_frozen_since(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    model[0].requires_grad_(False)
    before = training.masks["0.weight"]
    for _ in range(6):
        step(model, optimizer)
    assert not bool((training.masks["0.weight"] & ~before).any())
    assert bool((training.masks["2.weight"] & ~dict(make(method, net()).masks)["2.weight"]).any())


# ---- copies


def deep(thing: Any) -> Any:
    return copy.deepcopy(thing)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [deep, pickled])
@by_moving
def test_copies_go_on_by_themselves(method: str, copied: Callable[[Any], Any]) -> None:
    model = net()
    optimizer = sgd(model.parameters())
    training = make(method, model, optimizer)
    for _ in range(3):
        step(model, optimizer)
    twin, its_optimizer, its = copied((model, optimizer, training))
    assert its.model is twin
    batches = torch.randn(6, 8, 6)
    for one, its_own in ((model, optimizer), (twin, its_optimizer)):
        for x in batches:
            its_own.zero_grad()
            one(x).pow(2).mean().backward()
            its_own.step()
    assert (training.step, its.step, its.masks == training.masks) == (9, 9, True)
    assert [bits(p) for p in twin.parameters()] == [bits(p) for p in model.parameters()]
    assert list(its.history) == list(training.history)


def test_copy_of_a_removed_method_stays_removed() -> None:
    model = net()
    training = make("set", model)
    training.remove()
    its = copy.deepcopy(training)
    step(its.model, sgd(its.model.parameters()))
    assert its.step == 0


def test_copy_of_srste_trains_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    optimizer = sgd(model.parameters())
    training = SRSTE(model, optimizer)
    twin, its_optimizer, its = copy.deepcopy((model, optimizer, training))
    batches = torch.randn(4, 16, 8)
    for one, its_own in ((model, optimizer), (twin, its_optimizer)):
        for x in batches:
            its_own.zero_grad()
            one(x).pow(2).mean().backward()
            its_own.step()
    assert [bits(p) for p in twin.parameters()] == [bits(p) for p in model.parameters()]
    assert (its.step, its.masks == training.masks) == (4, True)


# ---- loading


@by_moving
def test_state_is_taken_up_after_the_masks_were_let_go(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    step(model, optimizer)
    state = training.state_dict()
    its = make(method, other := net())
    its.masks.remove()
    its.load_state_dict(state)
    its_optimizer = sgd(other.parameters())
    for _ in range(3):
        step(other, its_optimizer)
    assert (its.step, its.history[-1].step) == (4, 4)


@by_moving
def test_removed_method_that_loads_a_state_goes_on(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    step(model, optimizer)
    training.remove()
    training.load_state_dict(training.state_dict())
    for _ in range(3):
        step(model, optimizer)
    assert (training.step, training.history[-1].step) == (4, 4)


def test_state_is_refused_while_another_method_has_the_masks() -> None:
    model = net()
    first = make("set", model)
    state = first.state_dict()
    first.remove()
    make("rigl", model, sparsity=0.8)
    before = snapshot(model)
    with pytest.raises(HolderError, match="in the hands of RigL already"):
        first.load_state_dict(state)
    assert snapshot(model) == before


# ---- other calls in between


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_trains_as_the_plain_one(backend: str) -> None:
    results = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend=backend)):
        torch.manual_seed(0)
        model = wrap(net())
        training = make("rigl", model, optimizer := sgd(model.parameters()))
        for _ in range(5):
            step(model, optimizer)
        results.append((training.step, training.masks, [bits(p) for p in model.parameters()]))
    assert results[0] == results[1]


@by_moving
def test_model_may_change_its_dtype_right_before_a_change(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    step(model, optimizer)
    model.double()
    optimizer = sgd(model.parameters())
    optimizer.zero_grad()
    model(torch.randn(8, 6, dtype=torch.float64)).pow(2).mean().backward()
    optimizer.step()
    assert training.history[-1].step == 2
    assert all(layer.num_dropped for layer in training.history[-1].layers.values())
    assert nonzero_names(model, dict(training.masks)) == []


@by_moving
def test_weight_that_is_replaced_before_a_change_is_changed(method: str) -> None:
    model = net()
    training = make(method, model)
    step(model, sgd(model.parameters()))
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    step(model, sgd(model.parameters()))
    assert training.history[-1].step == 2
    assert all(layer.num_dropped for layer in training.history[-1].layers.values())


@by_moving
def test_zeros_that_a_second_call_adds_are_kept_in_number(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    for _ in range(3):
        step(model, optimizer)
    prune_(model, optimizer, sparsity=0.7)
    for _ in range(4):
        step(model, optimizer)
        assert nonzero_names(model, dict(training.masks)) == []
    assert training.masks.num_zeros() == 70
    assert training.history[-1].step == 6


@pytest.mark.parametrize("method", METHODS)
def test_model_is_freed_when_nobody_has_it_any_more(method: str) -> None:
    model = net()
    training = make(method, model, optimizer := sgd(model.parameters()))
    step(model, optimizer)
    seen = weakref.ref(model)
    del model, training, optimizer
    gc.collect()
    assert seen() is None
