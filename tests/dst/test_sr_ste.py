"""SR-STE beside its equation: dense weights, masked by hand for each forward pass, trained by the same optimizer."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, resize_
from secateur.allocation import uniform
from secateur.dst import SRSTE, RigL
from tests.masks.oracles import bits, nonzero_names, snapshot

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "AdamW-fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "Adam-foreach": (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 3}),
}
by_optimizer = pytest.mark.parametrize(("kind", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))


def largest(weight: Tensor, n: int = 2, m: int = 4) -> Tensor:
    """The n largest of each m along the second dim, by a sort."""
    groups = weight.detach().abs().unflatten(1, (-1, m))
    order = groups.argsort(dim=2, stable=True)
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(2, order[..., m - n :], True).flatten(1)


class ByHand:
    """Equation 9 of the paper: the loss at the masked weights, its gradient and the decay given to the dense ones."""

    def __init__(self, model: nn.Sequential, kind: Any, options: dict[str, Any], decay: float) -> None:
        self.model, self.decay = copy.deepcopy(model), decay
        self.optimizer = kind(self.model.parameters(), **options)

    def closure(self, x: Tensor) -> Tensor:
        weights = {name: p for name, p in self.model.named_parameters() if p.dim() > 1}
        masks = {name: largest(p) for name, p in weights.items()}
        masked = {name: (p.detach() * masks[name]).requires_grad_(True) for name, p in weights.items()}
        self.optimizer.zero_grad()
        loss = torch.func.functional_call(self.model, masked, (x,)).pow(2).mean()
        loss.backward()
        for name, p in weights.items():
            p.grad = masked[name].grad + self.decay * (p.detach() * ~masks[name])
        return loss.detach()

    def step(self, x: Tensor) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(lambda: self.closure(x))
        else:
            self.closure(x)
            self.optimizer.step()

    def masked(self) -> dict[str, Tensor]:
        return {
            name: p.detach() * largest(p) if p.dim() > 1 else p.detach() for name, p in self.model.named_parameters()
        }


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, *, closure: bool = False) -> None:
    def loss() -> Tensor:
        optimizer.zero_grad()
        value = model(x).pow(2).mean()
        value.backward()
        return value

    if closure or isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(loss)
    else:
        loss()
        optimizer.step()


@pytest.mark.parametrize("closure", [False, True])
@by_optimizer
def test_weights_are_those_of_the_equation(kind: Any, options: dict[str, Any], closure: bool) -> None:
    model = net()
    reference = ByHand(model, kind, options, decay=0.05)
    optimizer = kind(model.parameters(), **options)
    training = SRSTE(model, optimizer, decay=0.05)
    first = dict(training.masks)
    for _ in range(8):
        x = torch.randn(16, 8)
        step(model, optimizer, x, closure=closure)
        reference.step(x)
        for name, expected in reference.masked().items():
            torch.testing.assert_close(model.get_parameter(name).detach(), expected, rtol=1e-5, atol=1e-6)
        masks = dict(training.masks)
        assert nonzero_names(model, masks) == []
        assert all(
            torch.equal(mask.sum(dim=1), torch.full((len(mask),), mask.shape[1] // 2)) for mask in masks.values()
        )
    assert training.step == 8
    assert any(not torch.equal(mask, first[name]) for name, mask in masks.items()), "masks have followed"


@by_optimizer
def test_resumed_training_equals_the_uninterrupted_one(kind: Any, options: dict[str, Any]) -> None:
    batches = torch.randn(8, 16, 8)
    model = net()
    optimizer = kind(model.parameters(), **options)
    training = SRSTE(model, optimizer, every=2)
    for x in batches[:4]:
        step(model, optimizer, x)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), training.state_dict()))
    for x in batches[4:]:
        step(model, optimizer, x)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        other = net()
        its_optimizer = kind(other.parameters(), **options)
        its = SRSTE(other, its_optimizer, every=2)
        for part in order:
            (other, its_optimizer, its)[part].load_state_dict(copy.deepcopy(saved[part]))
        for x in batches[4:]:
            step(other, its_optimizer, x)
        assert [bits(p) for p in other.parameters()] == [bits(p) for p in model.parameters()], order
        assert list(its.history) == list(training.history)


@pytest.mark.parametrize("fused", [False, True])
def test_scaler_trains_the_same_and_its_skipped_steps_do_not_count(fused: bool) -> None:
    batches = torch.randn(5, 16, 8)
    results = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        training = SRSTE(model, optimizer, decay=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaled)
        for number, x in enumerate(batches):
            if number == 2 and not scaled:
                continue
            optimizer.zero_grad()
            loss = scaler.scale(model(x).pow(2).mean())
            (loss * torch.inf if number == 2 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert nonzero_names(model, dict(training.masks)) == []
        results.append((training.step, [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0] == 4
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_removal_holds_the_masks_as_they_are() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = SRSTE(model, optimizer)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
    training.remove()
    masks = dict(training.masks)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
        assert nonzero_names(model, masks) == []
        assert all(torch.equal(mask, masks[name]) for name, mask in training.masks.items())
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    assert not bool(momentum[~masks["0.weight"]].any())
    assert training.step == 3
    RigL(model, sparsity=0.5, every=2, end_step=10, allocation=uniform)


def test_masks_stay_from_the_end_step_on() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = SRSTE(model, optimizer, end_step=2)
    for _ in range(2):
        step(model, optimizer, torch.randn(16, 8))
    masks = dict(training.masks)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
    assert all(torch.equal(mask, masks[name]) for name, mask in training.masks.items())
    again = SRSTE(net(), end_step=2)
    again.load_state_dict(training.state_dict())
    assert again.masks == training.masks


def test_average_and_copies_have_masked_weights() -> None:
    model = net()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = SRSTE(model, optimizer)
    training.masks.attach(average)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
        average.update_parameters(model)
        assert Masks(average.module) == training.masks
        assert nonzero_names(average.module, dict(training.masks)) == []
    copied = copy.deepcopy(model)
    masks = dict(Masks(copied))
    step(copied, torch.optim.SGD(copied.parameters(), lr=0.1), torch.randn(16, 8))
    assert nonzero_names(copied, masks) == []


def test_step_that_fails_half_way_does_no_harm() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = ByHand(model, torch.optim.SGD, {"lr": 0.1}, decay=0.0)
    SRSTE(model, optimizer, decay=0.0)

    def failing() -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(failing)
    x = torch.randn(16, 8)
    step(model, optimizer, x)
    reference.step(x)
    for name, expected in reference.masked().items():
        torch.testing.assert_close(model.get_parameter(name).detach(), expected)


def test_nan_is_told_by_name_and_the_model_stays_sparse() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = SRSTE(model, optimizer)
    before = dict(training.masks)
    model(torch.randn(16, 8)).pow(2).mean().backward()
    model[2].weight.grad[0, 0] = math.nan
    with pytest.raises(InvalidInputError, match=r"the scores of '2\.weight': some are NaN"):
        optimizer.step()
    assert nonzero_names(model, before) == []
    assert all(torch.equal(mask, before[name]) for name, mask in training.masks.items())


def test_sparse_gradient_is_refused_before_anything_is_lifted() -> None:
    table = nn.Embedding(12, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    training = SRSTE(table, optimizer)
    table(torch.randint(12, (5,))).pow(2).mean().backward()
    with pytest.raises(UnsupportedError, match=r"'weight' is torch\.sparse_coo"):
        optimizer.step()
    assert nonzero_names(table, dict(training.masks)) == []


@pytest.mark.parametrize("keep", [[0, 1, 2, 3, 8, 9, 10, 11], [2, 3, 7, 11]], ids=str)
def test_masked_weights_follow_a_resize(keep: list[int]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = SRSTE(model, optimizer)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
    weight, latent = model[2].weight.detach().clone(), training.state_dict()["latent"]["2.weight"]
    cuts = ((model[0], "weight", 0), (model[0], "bias", 0), (model[2], "weight", 1))
    for module, name, dim in cuts:
        resize_(module, name, dim=dim, keep=keep, optimizer=optimizer)
    assert torch.equal(model[2].weight, weight[:, keep])
    assert torch.equal(training.state_dict()["latent"]["2.weight"], latent[:, keep])
    step(model, optimizer, torch.randn(16, 8))
    assert bool((training.masks["2.weight"].unflatten(1, (-1, 4)).sum(2) == 2).all())


def test_resize_to_a_size_that_the_groups_do_not_fit_is_refused() -> None:
    model = net()
    training = SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = snapshot(model)
    with pytest.raises(HolderError, match=r"cannot go on with '2\.weight'(.|\n)*multiples of 4"):
        resize_(model[2], "weight", dim=1, keep=range(10))
    assert snapshot(model) == before
    training.remove()
    resize_(model[2], "weight", dim=1, keep=range(10))


@pytest.mark.parametrize(
    ("error", "options", "match"),
    [
        (InvalidInputError, {"decay": -1.0}, "decay must be"),
        (InvalidInputError, {"decay": math.nan}, "decay must be"),
        (InvalidInputError, {"n": 4, "m": 4}, "0 < n < m"),
        (InvalidInputError, {"end_step": 0}, "end_step must be"),
        (InvalidInputError, {"every": 1.5}, "every must be"),
        (ShapeError, {"m": 5}, "not divisible by 5"),
    ],
)
def test_wrong_settings_are_refused(error: type[Exception], options: dict[str, Any], match: str) -> None:
    model = net()
    before = snapshot(model)
    with pytest.raises(error, match=match):
        SRSTE(model, **options)
    assert snapshot(model) == before


def test_several_optimizers_train_as_one() -> None:
    model = net()
    reference = ByHand(model, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, decay=0.05)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in (model[0], model[2])]
    training = SRSTE(model, optimizers, decay=0.05)
    for _ in range(4):
        x = torch.randn(16, 8)
        model.zero_grad()
        model(x).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            assert nonzero_names(model, dict(training.masks)) == []
        reference.step(x)
        for name, expected in reference.masked().items():
            torch.testing.assert_close(model.get_parameter(name).detach(), expected, rtol=1e-5, atol=1e-6)
    assert training.step == 4


def test_weights_stay_masked_where_the_first_is_trained_no_more() -> None:
    model = net()
    training = SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer, torch.randn(16, 8))
        assert nonzero_names(model, dict(training.masks)) == []
    assert training.step == 3


def test_weights_that_the_pattern_does_not_fit_are_skipped_also_when_resumed() -> None:
    model, other = (nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5)) for _ in range(2))
    training, its = SRSTE(model), SRSTE(other)
    assert list(training.masks.skipped) == ["1.weight"]
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(16, 8))
    its.load_state_dict(training.state_dict())
    assert (its.step, its.masks == training.masks) == (1, True)


def test_second_method_is_refused() -> None:
    model = net()
    SRSTE(model)
    with pytest.raises(HolderError, match="in the hands of SRSTE already"):
        RigL(model, sparsity=0.9, every=2, end_step=10)
    with pytest.raises(HolderError, match="in the hands of SRSTE already"):
        SRSTE(model)


def test_state_of_something_else_is_refused() -> None:
    training = SRSTE(net())
    with pytest.raises(InvalidInputError, match="no state of SRSTE"):
        training.load_state_dict(RigL(net(), sparsity=0.5, every=2, end_step=10).state_dict())
    with pytest.raises(InvalidInputError, match="saved for other weights"):
        training.load_state_dict(SRSTE(nn.Linear(8, 8)).state_dict())
