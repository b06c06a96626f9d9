"""A step is made as the last one was only while nothing has changed but gradients, and it is right either way."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import secateur._native as native
from secateur import Masks, ShapeError, UnsupportedError, prune_
from secateur._native.stepping import Batch
from secateur.masks import registry
from secateur.optim import SparseAdamW, SparseSGD
from secateur.optim.routine import Routine
from tests.optim.cases import BOTH, CASES, Case, Pair, assert_close, assert_zero, by_case, masks_of, pair

pytestmark = pytest.mark.skipif(native.library() is None, reason="without kernels every step is torch's")


@pytest.fixture
def answers() -> Iterator[list[bool]]:
    """What has been found at each step: whether it is as the one before."""
    found: list[bool] = []
    gradients = Routine.gradients

    def asked(self: Routine, optimizer: Any) -> list[Tensor] | None:
        answer = gradients(self, optimizer)
        found.append(answer is not None)
        return answer

    with patch.object(Routine, "gradients", asked):
        yield found


def trained(case: Case) -> Pair:
    """A pair that has made some steps."""
    both = pair(case)
    both.mask(0.3)
    both.step(0, 1, 2)
    return both


@by_case
def test_steps_are_repeated_and_right(case: Case, answers: list[bool]) -> None:
    both = trained(case)
    both.step(*range(3, 8))
    assert_close(both)
    assert answers[-6:] == [True] * 6


def _set(name: str, value: Any) -> Callable[[nn.Module, Optimizer], None]:
    def change(_: nn.Module, optimizer: Optimizer) -> None:
        optimizer.param_groups[0][name] = value

    return change


def _clear_in_place(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


def _shuffled_groups(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.param_groups[0] = dict(optimizer.param_groups[0])


def _own_data(model: nn.Module, optimizer: Optimizer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _frozen(model: nn.Module, optimizer: Optimizer) -> None:
    model.get_parameter("first.weight").requires_grad_(False)


def _first_is_frozen_and_thawed(model: nn.Module, optimizer: Optimizer) -> None:
    bias = model.get_parameter("first.bias")
    bias.requires_grad_(not bias.requires_grad)


def _own_state(model: nn.Module, optimizer: Optimizer) -> None:
    for state in optimizer.state.values():
        state.update({key: value.clone() for key, value in state.items() if isinstance(value, Tensor)})


def _other_dicts(model: nn.Module, optimizer: Optimizer) -> None:
    for parameter in list(optimizer.state):
        optimizer.state[parameter] = dict(optimizer.state[parameter])


def _forgotten(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.state.clear()


def _reloaded(model: nn.Module, optimizer: Optimizer) -> None:
    fused = [group.get("fused") for group in optimizer.param_groups]
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group, value in zip(optimizer.param_groups, fused, strict=True):
        group["fused"] = value


def _one_less(model: nn.Module, optimizer: Optimizer) -> None:
    del optimizer.param_groups[0]["params"][0]


def _other_masks(model: nn.Module, optimizer: Optimizer) -> None:
    Masks(model).update_(masks_of(model, 0.3, seed=5))


def _other_layout(model: nn.Module, optimizer: Optimizer) -> None:
    def turn(*_: Any) -> None:
        for name in ("first.weight", "last.weight"):
            gradient = model.get_parameter(name).grad
            assert gradient is not None
            model.get_parameter(name).grad = gradient.t().contiguous().t()

    optimizer.register_step_pre_hook(turn)


def _other_order(model: nn.Module, optimizer: Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()


KEPT: dict[str, Callable[[nn.Module, Optimizer], None]] = {
    "nothing": lambda model, optimizer: None,
    "learning rate": _set("lr", 0.004),
    "tensor learning rate": _set("lr", torch.tensor(0.004)),
    "decay": _set("weight_decay", 0.2),
    "gradients zeroed in place": _clear_in_place,
}
CHANGED: dict[str, Callable[[nn.Module, Optimizer], None]] = {
    "another dict of options": _shuffled_groups,
    "data of its own": _own_data,
    "frozen for good": _frozen,
    "state of its own": _own_state,
    "dicts of its own": _other_dicts,
    "state forgotten": _forgotten,
    "state loaded": _reloaded,
    "a parameter less": _one_less,
    "masks": _other_masks,
    "layout of gradients": _other_layout,
    "layout of weights": _other_order,
}
by_kind = pytest.mark.parametrize("case", BOTH, ids=lambda case: case.name)


@by_kind
@pytest.mark.parametrize("what", KEPT)
def test_what_each_step_reads_anew_may_change(case: Case, what: str, answers: list[bool]) -> None:
    both = trained(case)
    both.both(KEPT[what])
    both.step(3, 4)
    assert_close(both)
    assert answers[-2:] == [True, True]


@by_kind
@pytest.mark.parametrize("what", CHANGED)
def test_whatever_else_changes_is_looked_at_again(case: Case, what: str, answers: list[bool]) -> None:
    both = trained(case)
    del answers[:]
    if what == "a parameter less":
        for model in (both.model, both.twin):
            model.conv.requires_grad_(False)
    both.both(CHANGED[what])
    if "layout" in what:  # torch's fused kernels read other layouts wrongly
        both.reference.param_groups[0]["fused"] = None
    both.step(3)
    assert not any(answers)
    both.step(4, 5)
    if what == "a parameter less":
        for one, other in zip(both.model.parameters(), both.twin.parameters(), strict=True):
            torch.testing.assert_close(one, other)
    else:
        assert_close(both)


@by_kind
def test_parameter_that_rests_for_a_step_goes_on_after_it(case: Case, answers: list[bool]) -> None:
    both = trained(case)
    both.both(_first_is_frozen_and_thawed)
    both.step(3)
    assert answers[-1] is False
    both.both(_first_is_frozen_and_thawed)
    both.step(4, 5, 6)
    assert_close(both)
    assert answers[-1] is True


def test_momentum_may_be_switched_off_and_on(answers: list[bool]) -> None:
    both = trained(next(case for case in CASES if case.name == "SparseSGD-momentum"))
    for value in (0.0, 0.9):
        both.both(_set("momentum", value))
        both.step(3, 4, 5)
        assert_close(both)
    assert answers[-6:] == [False, True, True, False, True, True]


@by_kind
def test_group_that_is_added_is_stepped(case: Case, answers: list[bool]) -> None:
    both = trained(case)
    for model, optimizer in ((both.model, both.optimizer), (both.twin, both.reference)):
        torch.manual_seed(3)
        model.norm.register_parameter("more", nn.Parameter(torch.randn(7, 1, 1)))
        model.conv.register_forward_hook(lambda _, inputs, y, norm=model.norm: y * norm.more)
        optimizer.add_param_group({"params": [model.norm.more], "lr": 0.5})
    del answers[:]
    both.step(3, 4, 5)
    for one, other in zip(both.model.parameters(), both.twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert (answers[0], answers[-1]) == (False, True)


@by_kind
def test_library_that_is_gone_is_not_called(case: Case, answers: list[bool]) -> None:
    both = trained(case)
    with patch.object(native, "library", return_value=None):
        both.step(3, 4)
        assert not any(answers[-1:])
    both.step(5, 6)
    assert_close(both)


@by_kind
def test_gradients_are_not_kept_alive(case: Case) -> None:
    both = trained(case)
    gradients = [weakref.ref(parameter.grad) for parameter in both.model.parameters()]
    both.optimizer.zero_grad()
    assert [gradient() for gradient in gradients] == [None] * len(gradients)


@by_kind
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda gradient: gradient.to_sparse(), UnsupportedError),
        (lambda gradient: gradient.double(), UnsupportedError),
        (lambda gradient: gradient[:1], ShapeError),
    ],
    ids=["sparse", "dtype", "shape"],
)
def test_gradients_that_do_not_fit_are_refused_as_at_first(
    case: Case, spoil: Callable[[Tensor], Tensor], error: type[Exception]
) -> None:
    both = trained(case)
    parameter = both.model.get_parameter("first.weight")
    gradient = parameter.grad
    assert gradient is not None
    before = [each.detach().clone() for each in both.model.parameters()]
    spoiled = property(lambda self: spoil(gradient) if self is parameter else None)
    with patch.object(type(parameter), "grad", spoiled), pytest.raises(error):
        both.optimizer.step()
    assert all(map(torch.equal, before, both.model.parameters()))
    both.step(3, 4)
    assert_close(both)


@pytest.mark.parametrize("case", BOTH, ids=lambda case: case.name)
def test_state_that_was_cut_by_hand_is_refused(case: Case) -> None:
    both = trained(case)
    state = both.optimizer.state[both.model.get_parameter("first.weight")]
    name = "exp_avg" if isinstance(both.optimizer, SparseAdamW) else "momentum_buffer"
    state[name].resize_(3)
    before = [each.detach().clone() for each in both.model.parameters()]
    with pytest.raises(ShapeError, match="state has another shape"):
        both.optimizer.step()
    assert all(map(torch.equal, before, both.model.parameters()))


@by_kind
def test_two_optimizers_take_turns(case: Case) -> None:
    """Another optimizer masks gradients as it steps; the sparse one goes on leaving them."""
    both = trained(case)
    optimizer = case.make(both.model.parameters(), mask_gradients=False)
    other = torch.optim.SGD(both.model.parameters(), lr=0.0)
    mask = dict(Masks(both.model))["first.weight"]
    for number in range(3):
        both.step_one(both.model, optimizer, number)
        other.step()
        both.step_one(both.model, optimizer, number)
        both.model.zero_grad()
        both.model(torch.randn(4, 3, 5, 5)).sum().backward()
        gradient = both.model.get_parameter("first.weight").grad
        assert gradient is not None
        assert (gradient[~mask] != 0).any()


# Found by trying to break it ------------------------------------------------------------------------------------------


@by_kind
def test_masks_that_come_elsewhere_in_the_middle_of_a_step_do_no_harm(case: Case, answers: list[bool]) -> None:
    """Another masked model is collected, or another thread prunes one."""
    both = trained(case)
    optimizer = case.make(both.model.parameters(), mask_gradients=False)
    for number in range(3):
        both.step_one(both.model, optimizer, number)
    before = Routine.gradients

    def touched(self: Routine, optimizer: Any) -> list[Tensor] | None:
        found = before(self, optimizer)
        registry.touch()
        return found

    with patch.object(Routine, "gradients", touched):
        both.step_one(both.model, optimizer, 3)
    assert answers[-1] is True
    both.step_one(both.model, optimizer, 4)
    for name, mask in Masks(both.model).items():
        assert_zero(both.model.get_parameter(name).detach()[~mask])


@by_kind
def test_gradients_live_until_the_kernel_has_read_them(case: Case) -> None:
    both = trained(case)
    alive: list[bool] = []
    step = Batch.step

    def dropped_meanwhile(self: Batch, *arguments: Any) -> None:
        seen = [weakref.ref(parameter.grad) for parameter in both.model.parameters()]
        for parameter in both.model.parameters():
            parameter.grad = None
        alive.extend(each() is not None for each in seen)
        step(self, *arguments)

    with patch.object(Batch, "step", dropped_meanwhile):
        both.step_one(both.model, both.optimizer, 3)
    assert alive
    assert all(alive)
    both.step_one(both.twin, both.reference, 3)
    assert_close(both)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mask_that_lies_elsewhere_is_read_there(momentum: float) -> None:
    layer = nn.Linear(64, 64, bias=False)
    optimizer = SparseSGD(layer.parameters(), lr=0.1, momentum=momentum)
    masks = prune_(layer, optimizer, sparsity=0.5)
    for _ in range(3):
        layer.weight.grad = torch.ones(64, 64)
        optimizer.step()
    mask = masks["weight"]
    packed = next(iter(masks._found().values())).bits.packed
    old = packed.data
    packed.data = packed.data.clone()
    old.copy_(~old)  # what stands there when the memory has gone to somebody else
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.ones(64, 64)
    optimizer.step()
    assert_zero(layer.weight.detach()[~mask])
    assert (layer.weight[mask] != before[mask]).all()


def test_entries_that_an_optimizer_does_not_use_are_left_alone() -> None:
    both = trained(next(case for case in CASES if case.name == "SparseSGD-momentum"))
    for state in both.optimizer.state.values():
        state["step"] = 3
    both.step_one(both.model, both.optimizer, 3)
    both.step_one(both.twin, both.reference, 3)
    for one, other in zip(both.model.parameters(), both.twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_state_that_is_turned_around_is_seen(answers: list[bool]) -> None:
    layer = nn.Linear(8, 8, bias=False)
    twin = copy.deepcopy(layer)
    optimizer, reference = SparseAdamW(layer.parameters()), torch.optim.AdamW(twin.parameters())
    for _ in range(4):
        for each, one in ((layer, optimizer), (twin, reference)):
            each.weight.grad = torch.arange(64.0).view(8, 8)
            one.step()
            one.state[each.weight]["exp_avg"].data = one.state[each.weight]["exp_avg"].data.t()
        torch.testing.assert_close(layer.weight, twin.weight)
    assert not any(answers)


def test_parameter_that_is_there_twice_in_the_place_of_another_is_seen(answers: list[bool]) -> None:
    layer = nn.Linear(8, 8)
    optimizer = SparseSGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    optimizer.param_groups[0]["params"] = [layer.weight, layer.weight]
    assert optimizer._routine is not None
    assert optimizer._routine.gradients(optimizer) is None
