from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.optim import Optimizer

from secateur import Masks
from secateur._native.masking import Kernels
from secateur.masks import keeper
from secateur.masks import mask as mask_module
from secateur.masks.bits import Bits
from secateur.masks.capture import Capture
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from tests.masks.oracles import carried_over, half, halves, is_zero, nonzero_names, zero_by_hand

pytestmark = pytest.mark.usefixtures("by")


class Net(nn.Module):
    """A large weight and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(300, 300), nn.Linear(300, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.small(self.large(x).tanh())


def batch() -> Tensor:
    return torch.randn(8, 300)


def step(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(batch()).pow(2).mean().backward()
    optimizer.step()


@pytest.fixture
def model() -> nn.Module:
    return Net()


@pytest.fixture
def masks(model: nn.Module) -> dict[str, Tensor]:
    """Masks that are on the model, with no optimizer named."""
    made = halves(model)
    Masks.from_dict(model, made)
    return made


def warm(model: nn.Module, kind: type[Optimizer] = torch.optim.Adam, **options: float) -> Optimizer:
    """An optimizer with state from training without masks, or with."""
    optimizer = kind(model.parameters(), lr=1e-2, **options)
    for _ in range(2):
        step(model, optimizer)
    return optimizer


def assert_held(model: nn.Module, optimizer: Optimizer, masks: dict[str, Tensor]) -> None:
    assert nonzero_names(model, masks) == []
    assert carried_over(optimizer, model, masks) == []


def test_optimizer_that_was_made_and_used_before_need_not_be_named(model: nn.Module) -> None:
    optimizer = warm(model)
    masks = halves(model)
    Masks.from_dict(model, masks)
    step(model, optimizer)
    assert_held(model, optimizer, masks)


def test_optimizer_that_is_made_later_need_not_be_named(model: nn.Module, masks: dict[str, Tensor]) -> None:
    assert_held(model, warm(model), masks)


def test_state_of_a_named_optimizer_is_cleared_at_once(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())  # which has not stepped, so nobody knows it
    optimizer.load_state_dict(warm(copy.deepcopy(model)).state_dict())
    masks = halves(model)
    Masks.from_dict(model, masks, optimizer)
    assert_held(model, optimizer, masks)


def test_two_optimizers_share_a_model(model: nn.Module, masks: dict[str, Tensor]) -> None:
    one = torch.optim.SGD(model.large.parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.Adam(model.small.parameters())
    Masks(model).attach([one, other])
    for _ in range(3):
        step(model, one)
        other.step()
        assert_held(model, one, masks)
        assert_held(model, other, masks)


def test_two_optimizers_may_hold_the_same_parameters(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(model.parameters())]
    for i in range(6):
        step(model, optimizers[i % 2])
        assert_held(model, optimizers[i % 2], masks)


def test_parameters_of_a_group_that_is_added_later_are_held(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(model.small.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    optimizer.add_param_group({"params": model.large.parameters(), "weight_decay": 0.1})
    for _ in range(3):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


def test_parameter_that_is_put_into_a_group_by_hand_is_held(model: nn.Module, masks: dict[str, Tensor]) -> None:
    stranger = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([stranger, *model.small.parameters()], lr=0.1, momentum=0.9)
    step(model, optimizer)
    optimizer.param_groups[0]["params"][0] = model.large.weight
    with torch.no_grad():
        model.large.weight.add_(1.0)
    step(model, optimizer)
    assert_held(model, optimizer, masks)


def test_weights_are_held_by_subclasses_whose_step_calls_that_of_the_base(
    model: nn.Module, masks: dict[str, Tensor]
) -> None:
    class Noisy(torch.optim.Adam):
        """Adds noise to all weights after the step."""

        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.1)

    optimizer = Noisy(model.parameters())
    for _ in range(3):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


def test_weights_are_held_for_an_optimizer_of_unknown_kind(model: nn.Module, masks: dict[str, Tensor]) -> None:
    class Mixing(Optimizer):
        """Takes the mean gradient of each row, and remembers it."""

        def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                mean = parameter.grad.mean(dim=-1, keepdim=True).expand_as(parameter)
                self.state[parameter].setdefault("memory", torch.zeros_like(parameter)).add_(mean)
                parameter.sub_(self.state[parameter]["memory"])

    optimizer = Mixing(model.parameters())
    for _ in range(3):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_decay_of_more_than_everything_gives_no_negative_zeros(
    model: nn.Module, masks: dict[str, Tensor], kind: type[Optimizer]
) -> None:
    optimizer = kind(model.parameters(), lr=1.0, weight_decay=3.0)
    for _ in range(2):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


@pytest.mark.parametrize("lr", [torch.inf, torch.nan])
def test_learning_rate_that_is_not_finite_leaves_zeros(model: nn.Module, masks: dict[str, Tensor], lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model(batch()).pow(2).mean().backward()
    optimizer.step()
    assert_held(model, optimizer, masks)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_half_precision_in_which_eps_is_zero_gives_no_nan(kind: type[Optimizer]) -> None:
    model = Net().half()
    masks = halves(model)
    Masks.from_dict(model, masks)
    optimizer = kind(model.parameters(), lr=0.01, eps=1e-10)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch().half()).pow(2).mean().backward()
        optimizer.step()
        assert_held(model, optimizer, masks)


def test_adadelta_without_eps_remembers_no_nan_at_masked_places(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.Adadelta(model.parameters(), eps=0.0)
    for _ in range(3):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


def test_weights_that_a_closure_writes_to_are_held(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(0.1)
            parameter.grad.add_(0.1)
        return loss

    for arguments in ({"closure": closure}, {}):
        assert optimizer.step(*([] if arguments else [closure]), **arguments).isfinite()
        assert_held(model, optimizer, masks)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Muon])
def test_gradients_that_a_closure_writes_to_are_masked_before_they_mix(kind: type[Optimizer]) -> None:
    weights = [nn.Parameter(torch.ones(6, 6)) for _ in range(2)]
    mask, target = half((6, 6)), torch.randn(6, 6)
    for weight, by_hand in zip(weights, (False, True), strict=True):
        with torch.no_grad():
            weight.mul_(mask)
        if not by_hand:
            Mask(weight, Bits.of(mask, weight))
        optimizer = kind([weight], lr=0.01)

        def closure(weight: nn.Parameter = weight, by_hand: bool = by_hand, its: Optimizer = optimizer) -> Tensor:
            its.zero_grad()
            loss = (weight - target).pow(2).sum()
            loss.backward()
            weight.grad.add_(0.1)
            if by_hand:
                weight.grad.mul_(mask)
            return loss

        for _ in range(3):
            optimizer.step(closure)
            with torch.no_grad():
                weight.mul_(mask)
    assert torch.equal(weights[0], weights[1])


def test_closure_is_called_as_often_as_without_masks(model: nn.Module, masks: dict[str, Tensor]) -> None:
    dense = Net()
    calls = []
    for each in (model, dense):
        optimizer = torch.optim.LBFGS(each.parameters(), max_iter=3)
        count = 0

        def closure(each: nn.Module = each, optimizer: Optimizer = optimizer) -> Tensor:
            nonlocal count
            count += 1
            optimizer.zero_grad()
            loss = each(torch.ones(2, 300)).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        calls.append(count)
    assert calls == [3, 3]


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_another_hook_writes_to_unseen_are_held(
    model: nn.Module, masks: dict[str, Tensor], when: str
) -> None:
    optimizer = torch.optim.Adam(model.parameters())

    def disturb(*_: object) -> None:
        for name, mask in masks.items():
            parameter = model.get_parameter(name)
            position = tuple((~mask).nonzero()[-1])
            parameter.data[position] = 5.0
            parameter.grad.data[position] = 5.0

    register = optimizer.register_step_pre_hook if when == "before" else optimizer.register_step_post_hook
    handle = register(disturb)
    for _ in range(2):
        step(model, optimizer)
        assert_held(model, optimizer, masks)
    handle.remove()
    step(model, optimizer)
    assert_held(model, optimizer, masks)


def test_gradients_written_to_by_a_hook_on_the_step_leave_no_momentum(
    model: nn.Module, masks: dict[str, Tensor]
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def add_noise(*_: object) -> None:
        for parameter in model.parameters():
            parameter.grad.add_(0.1)

    optimizer.register_step_pre_hook(add_noise)
    for _ in range(2):
        step(model, optimizer)
        assert_held(model, optimizer, masks)


def test_gradients_made_nan_by_a_hook_on_the_step_leave_no_nan(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters())

    def spoil(*_: object) -> None:
        for name, mask in masks.items():
            model.get_parameter(name).grad[~mask] = torch.nan

    optimizer.register_step_pre_hook(spoil)
    for _ in range(2):
        step(model, optimizer)
        assert_held(model, optimizer, masks)
        assert all(state["exp_avg_sq"].isfinite().all() for state in optimizer.state.values())


def test_masks_that_change_in_a_hook_on_the_step_are_held_at_once(model: nn.Module) -> None:
    optimizer = warm(model)
    masks = halves(model)

    def prune(*_: object) -> None:
        Masks.from_dict(model, masks)

    handle = optimizer.register_step_post_hook(prune)
    step(model, optimizer)
    handle.remove()
    assert nonzero_names(model, masks) == []
    step(model, optimizer)
    assert_held(model, optimizer, masks)


def test_mask_that_comes_into_force_in_a_hook_on_the_step_is_held_from_then_on(model: nn.Module) -> None:
    optimizer = warm(model)
    mask, made = half((4, 300)), []

    def put(*_: object) -> None:
        made.append(Mask(model.small.weight, Bits.of(mask, model.small.weight)))

    handle = optimizer.register_step_post_hook(put)
    optimizer.zero_grad()
    model.large.weight.sum().backward()
    optimizer.step()  # the small weight has no gradient, and so far no mask
    handle.remove()
    assert is_zero(model.small.weight[~mask])
    step(model, optimizer)
    assert_held(model, optimizer, {"small.weight": mask})


def test_state_that_is_written_to_by_hand_is_cleared_again(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    for state in optimizer.state.values():
        state["exp_avg"].add_(1.0)
    step(model, optimizer)
    assert_held(model, optimizer, masks)
    for state in optimizer.state.values():
        state["exp_avg"] = torch.ones_like(state["exp_avg"])
    step(model, optimizer)
    assert_held(model, optimizer, masks)


def test_optimizers_that_step_inside_backward_are_held(model: nn.Module) -> None:
    _apply_optimizer_in_backward(torch.optim.Adam, model.parameters(), {"lr": 0.01})
    masks = halves(model)
    Masks.from_dict(model, masks)
    for _ in range(3):
        model(batch()).pow(2).mean().backward()
        assert nonzero_names(model, masks) == []
        for parameter in model.parameters():
            assert_held(model, parameter._in_backward_optimizers[0], masks)


def test_gradients_assigned_by_hand_are_masked(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        optimizer.step()
        assert_held(model, optimizer, masks)


def test_frozen_weights_are_held_and_go_on_so_when_they_are_unfrozen() -> None:
    model = Net()
    model.large.requires_grad_(False)
    masks = halves(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    Masks.from_dict(model, masks, optimizer)
    before = model.large.weight.detach().clone()
    step(model, optimizer)
    assert torch.equal(model.large.weight, before)
    model.large.requires_grad_(True)
    optimizer.zero_grad()
    model(batch()).pow(2).mean().backward()
    assert is_zero(model.large.weight.grad[~masks["large.weight"]])
    for _ in range(2):
        step(model, optimizer)
        assert_held(model, optimizer, masks)
    assert not torch.equal(model.large.weight, before)


def test_step_without_gradients_changes_nothing(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_large_weights_are_not_masked_again_when_nothing_has_interfered(
    model: nn.Module, masks: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = warm(model)
    cleared = []
    clear = mask_module.clear_weights_

    def note(masks: Sequence[Mask]) -> None:
        cleared.extend(tuple(mask.bits.shape) for mask in masks)
        clear(masks)

    monkeypatch.setattr(mask_module, "clear_weights_", note)
    monkeypatch.setattr(keeper, "clear_weights_", note)
    step(model, optimizer)
    assert cleared == [(4, 300)]
    with torch.no_grad():
        model.large.weight.add_(1.0)
    cleared.clear()
    step(model, optimizer)
    assert cleared == [(300, 300), (4, 300)]


def test_kernels_mask_all_weights_after_a_step_in_one_call(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*[nn.Linear(12, 12) for _ in range(4)])
    masks = halves(model)
    Masks.from_dict(model, masks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(3, 12)).sum().backward()
    calls = []
    clear = Kernels.clear_
    monkeypatch.setattr(Kernels, "clear_", lambda self, pairs: (calls.append(len(pairs)), clear(self, pairs)))
    optimizer.step()
    assert calls == ([4] if by == "kernels" else [])
    assert nonzero_names(model, masks) == []


def test_schedulers_and_swapped_learning_rates_are_no_interference(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    reference = copy.deepcopy(model)
    Masks(reference).remove()
    its_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    its_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(its_optimizer, 5)
    for i in range(5):
        x = torch.randn(8, 300, generator=torch.Generator().manual_seed(i))
        for each, its in ((model, optimizer), (reference, its_optimizer)):
            its.zero_grad()
            each(x).pow(2).mean().backward()
            its.step()
        scheduler.step()
        its_scheduler.step()
        zero_by_hand(reference, masks)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), reference.parameters(), strict=True))


def test_neutral_values_are_given_again_before_they_have_faded(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.5))
    step(model, optimizer)
    seen = []
    for _ in range(30):
        step(model, optimizer)
        seen.append(float(optimizer.state[model.large.weight]["exp_avg_sq"][~masks["large.weight"]].min()))
    assert max(seen) == 0.5
    assert 1e-3 < min(seen) < 4e-3


def test_neutral_values_are_given_again_after_state_was_loaded(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    for name, mask in masks.items():
        assert bool((optimizer.state[model.get_parameter(name)]["exp_avg_sq"][~mask] > 0.99).all())


def test_mask_that_is_left_to_its_listener_leaves_no_neutral_values(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    masked = ~masks["small.weight"]
    state = optimizer.state[model.small.weight]
    assert bool((state["exp_avg_sq"][masked] > 0.99).all())
    mask_of(model.small.weight).listen(Listening(model, masks), enforced=False)
    assert is_zero(state["exp_avg_sq"][masked])


def test_state_that_was_loaded_is_left_when_masks_are_removed(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    loaded = copy.deepcopy(optimizer.state_dict())
    loaded["state"][0]["exp_avg_sq"].fill_(3.0)
    optimizer.load_state_dict(loaded)
    Masks(model).remove()
    assert bool((optimizer.state[next(model.parameters())]["exp_avg_sq"] == 3.0).all())


def test_optimizer_is_not_kept_alive(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    assert optimizer in keeper._DESKS
    before = len(keeper._DESKS)
    del optimizer
    assert len(keeper._DESKS) == before - 1


def test_optimizers_without_masked_parameters_run_as_always() -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer.weight.grad = torch.ones(3, 4)
    before = layer.weight.detach().clone()
    optimizer.step()
    assert torch.equal(layer.weight, before - 0.5)


class Listening:
    """Notes down when it is called, and whether weights were masked then."""

    def __init__(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        self.model, self.masks, self.calls = model, masks, []

    def note(self, call: str) -> None:
        self.calls.append((call, nonzero_names(self.model, self.masks) == []))

    def before_step(self, optimizer: Optimizer, held: Sequence[Mask], *, has_closure: bool) -> None:
        self.note(f"before {type(optimizer).__name__}{' with a closure' if has_closure else ''}")

    def before_closure(self, held: Sequence[Mask]) -> None:
        self.note("before closure")

    def after_closure(self, held: Sequence[Mask]) -> None:
        self.note("after closure")

    def after_step(self, optimizer: Optimizer, held: Sequence[Mask]) -> None:
        self.note(f"after {type(optimizer).__name__}")


@pytest.mark.parametrize("as_keyword", [False, True])
def test_listener_is_called_around_steps_and_closures_of_whoever_holds_its_parameter(
    model: nn.Module, masks: dict[str, Tensor], as_keyword: bool
) -> None:
    listener = Listening(model, masks)
    mask_of(model.small.weight).listen(listener)
    sgd, adam = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.large.parameters())
    step(model, sgd)
    step(model, adam)

    def closure() -> Tensor:
        loss = model(batch()).pow(2).mean()
        loss.backward()
        return loss

    if as_keyword:
        sgd.step(closure=closure)
    else:
        sgd.step(closure)
    mask_of(model.small.weight).listen(None)
    step(model, sgd)
    assert listener.calls == [
        ("before SGD", True),
        ("after SGD", True),
        ("before SGD with a closure", True),
        ("before closure", True),
        ("after closure", True),
        ("after SGD", True),
    ]


def test_listener_is_no_reason_to_mask_large_tensors_twice(model: nn.Module, masks: dict[str, Tensor]) -> None:
    mask = mask_of(model.large.weight)
    optimizer = warm(model, torch.optim.SGD)
    mask.listen(Listening(model, masks))
    versions = []
    for _ in range(3):
        step(model, optimizer)
        versions.append(model.large.weight._version)
    assert [after - before for before, after in pairwise(versions)] == [1, 1], "the optimizer's write only"


def test_mask_that_its_listener_holds_is_left_to_it(model: nn.Module, masks: dict[str, Tensor]) -> None:
    mask = mask_of(model.small.weight)
    mask.listen(Listening(model, masks), enforced=False)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not is_zero(model.small.weight.detach()[~masks["small.weight"]])
    assert not is_zero(model.small.weight.grad[~masks["small.weight"]])
    assert is_zero(model.large.weight.detach()[~masks["large.weight"]])
    mask.listen(None)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert nonzero_names(model, masks) == []


def test_listener_goes_where_the_name_goes_but_not_into_copies(model: nn.Module, masks: dict[str, Tensor]) -> None:
    listener = Listening(model, masks)
    mask_of(model.small.weight).listen(listener)
    model.small.weight = nn.Parameter(model.small.weight.detach().clone())
    assert mask_of(model.small.weight).listener is listener
    assert mask_of(copy.deepcopy(model).small.weight).listener is None
    Masks(model).remove()
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert listener.calls == []


def test_masks_that_change_often_leave_nothing_behind(model: nn.Module, masks: dict[str, Tensor]) -> None:
    optimizer = warm(model)
    for seed in range(4):
        Masks(model).update_(halves(model, seed))
        step(model, optimizer)
    desk = keeper._DESKS[optimizer]
    assert len(desk.settled) == len(desk.neutral_due) == len(masks)


class Enforcing(torch.optim.SGD):
    """Holds the zeros of its weights by itself, as a part of its step."""

    enforces_masks = True

    def __init__(self, masks: dict[nn.Parameter, Tensor], **options: float) -> None:
        super().__init__(list(masks), **options)
        self.masks = masks

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for parameter, mask in self.masks.items():
            parameter.sub_(0.1 * torch.where(mask, parameter.grad, 0.0))


def enforcing(model: nn.Module, masks: dict[str, Tensor]) -> Enforcing:
    return Enforcing({model.get_parameter(name): mask for name, mask in masks.items()})


def test_optimizer_that_enforces_masks_has_them_left_to_it(
    model: nn.Module, masks: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = enforcing(model, masks)
    for own_work in ("prepare_step", "outlasts", "remember", "_window_is_clear"):
        monkeypatch.delattr(Mask, own_work)
    for _ in range(3):
        step(model, optimizer)
        assert nonzero_names(model, masks) == []
        assert keeper.desks_with(mask_of(model.large.weight)) == []


def test_gradients_are_masked_as_they_arrive_for_an_optimizer_that_enforces_masks(
    model: nn.Module, masks: dict[str, Tensor]
) -> None:
    step(model, enforcing(model, masks))
    assert all(is_zero(model.get_parameter(name).grad[~mask]) for name, mask in masks.items())


def test_listener_is_called_around_steps_of_an_optimizer_that_enforces_masks(
    model: nn.Module, masks: dict[str, Tensor]
) -> None:
    listener = Listening(model, masks)
    mask_of(model.small.weight).listen(listener)
    step(model, enforcing(model, masks))
    assert listener.calls == [("before Enforcing", True), ("after Enforcing", True)]


def test_mask_is_held_again_when_its_optimizer_enforces_masks_no_more(
    model: nn.Module, masks: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = enforcing(model, masks)
    step(model, optimizer)
    monkeypatch.setattr(Enforcing, "enforces_masks", False)
    with torch.no_grad():
        model.large.weight.add_(1.0)
    step(model, optimizer)
    assert nonzero_names(model, masks) == []


def test_capture_takes_in_a_gradient_put_in_place_by_hand_for_an_optimizer_that_enforces_masks(
    model: nn.Module, masks: dict[str, Tensor]
) -> None:
    mask, optimizer = mask_of(model.small.weight), enforcing(model, masks)
    step(model, optimizer)
    mask.capture = Capture()
    model.small.weight.grad = torch.ones(4, 300)
    optimizer.step()
    assert torch.equal(mask.capture.total, torch.ones(4, 300))
    model.small.weight.grad = None
    optimizer.masks = {}
    optimizer.step()
    assert mask.capture.total is None
