"""Methods in the training loops that people have."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from secateur import Masks, patterns, prune_, scores
from secateur.dst import METHODS, RigL, SparseTraining, gradient
from tests.dst.methods import flat, make, net, step
from tests.masks.oracles import bits, nonzero_names

MOVING = [name for name in METHODS if name != "static"]
by_moving = pytest.mark.parametrize("method", MOVING)


# ---- loops


@by_moving
def test_method_goes_on_though_nobody_holds_it(method: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make(method, model, optimizer)
    before = dict(Masks(model))
    for _ in range(4):
        step(model, optimizer)
    assert any(not torch.equal(mask, before[name]) for name, mask in Masks(model).items())


@by_moving
def test_optimizer_may_be_made_later_or_anew(method: str) -> None:
    model = net()
    training = make(method, model)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step(model, torch.optim.AdamW(model.parameters()))
    assert (training.step, training.history[-1].step) == (2, 2)


@by_moving
def test_several_optimizers_and_groups_count_as_one_step(method: str) -> None:
    model = net()
    optimizers = [
        torch.optim.SGD([{"params": model[0].parameters()}], lr=0.1, momentum=0.9),
        torch.optim.AdamW([{"params": [model[2].weight]}, {"params": [model[2].bias], "weight_decay": 0.0}]),
    ]
    training = make(method, model, optimizers)
    for _ in range(4):
        model(torch.randn(8, 6)).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        assert nonzero_names(model, dict(training.masks)) == []
    assert [change.step for change in training.history] == [0, 2, 4]
    assert all(layer.num_dropped for layer in training.history[-1].layers.values())


@pytest.mark.parametrize("fused", [False, True])
@by_moving
def test_steps_that_a_scaler_skips_do_not_count(method: str, fused: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    training = make(method, model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for number in range(6):
        optimizer.zero_grad()
        loss = scaler.scale(model(torch.randn(8, 6)).pow(2).mean())
        (loss * torch.inf if number in (1, 3) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert nonzero_names(model, dict(training.masks)) == []
    assert training.step == 4
    assert [change.step for change in training.history] == [0, 2, 4]


def test_scale_of_a_scaler_does_not_reach_the_scores() -> None:
    found = []

    def seen(moment: Any) -> Any:
        found.append({name: gradient.clone() for name, gradient in moment.gradients.items()})
        return scores.magnitude(moment)

    for fused in (False, True):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        training = SparseTraining(model, optimizer, sparsity=0.5, every=1, end_step=1, drop=seen, grow=scores.random)
        kept = dict(training.masks)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        loss = model(torch.randn(8, 6)).pow(2).mean()
        expected = torch.autograd.grad(loss, [model[0].weight], retain_graph=True)[0]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        torch.testing.assert_close(found[-1]["0.weight"][kept["0.weight"]], expected[kept["0.weight"]])


@by_moving
def test_closure_that_is_evaluated_once_changes_nothing(method: str) -> None:
    results = []
    for with_closure in (False, True):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        training = make(method, model, optimizer)
        for _ in range(4):
            x = torch.randn(8, 6)

            def closure(x: torch.Tensor = x, model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        results.append((flat(training), [bits(p) for p in model.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_average_of_the_model_follows() -> None:
    model = net()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer)
    training.masks.attach(average)
    for _ in range(5):
        step(model, optimizer)
        average.update_parameters(model)
        assert Masks(average.module) == training.masks
        assert nonzero_names(average.module, dict(training.masks)) == []


def test_copies_and_pickles_have_masks_that_do_not_change() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer)
    step(model, optimizer)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = dict(Masks(copied))
        its = torch.optim.SGD(copied.parameters(), lr=0.1)
        for _ in range(4):
            step(copied, its)
        assert all(torch.equal(mask, before[name]) for name, mask in Masks(copied).items())
        assert nonzero_names(copied, before) == []
    assert training.step == 1


def test_parameter_that_is_replaced_keeps_the_method() -> None:
    model = net()
    training = make("set", model)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    for _ in range(2):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (training.history[-1].step, training.history[-1].layers["0.weight"].num_grown > 0) == (2, True)


def test_gradient_that_is_set_by_hand_is_read() -> None:
    layer = nn.Linear(6, 6, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    training = RigL(layer, optimizer, sparsity=0.5, every=1, end_step=3, drop_fraction=lambda step: 0.5)
    kept = training.masks["weight"]
    slope = torch.randn(6, 6)
    layer.weight.grad = slope.clone()
    optimizer.step()
    grown = training.masks["weight"] & ~kept
    assert set(grown.flatten().nonzero().flatten().tolist()) == set(
        slope.abs().masked_fill(kept, -1).flatten().topk(9).indices.tolist()
    )


def test_masks_that_the_model_has_already_are_the_start() -> None:
    model = net()
    before = dict(prune_(model, sparsity=0.8))
    training = SparseTraining(
        model, sparsity=0.8, every=2, end_step=10, grow=gradient, start=scores.magnitude, allocation=_same
    )
    assert all(torch.equal(mask, before[name]) for name, mask in training.masks.items())


def _same(units: Any, sparsity: float) -> dict[str, int]:
    return {name: int((each.scores == -torch.inf).sum()) for name, each in units.items()}


@pytest.mark.parametrize("pattern", [patterns.Channel(0), patterns.Block((2, 2))], ids=repr)
@by_moving
def test_patterns_hold_through_all_changes(method: str, pattern: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make(method, model, optimizer, pattern=pattern)
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(8, 8)).pow(2).mean().backward()
        optimizer.step()
        for mask in training.masks.values():
            assert torch.equal(pattern.expand(pattern.reduce(mask.float()) > 0, mask.shape), mask)


@by_moving
def test_weights_that_the_pattern_does_not_fit_are_skipped_also_when_resumed(method: str) -> None:
    def convolution() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 9))

    model, other = convolution(), convolution()
    model[2].weight.requires_grad_(False)  # which does not matter, as it is skipped
    training = make(method, model, pattern=patterns.Block((1, 1, 3, 3)))
    assert list(training.masks.skipped) == ["2.weight"]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 4, 4)).pow(2).mean().backward()
        optimizer.step()
    its = make(method, other, pattern=patterns.Block((1, 1, 3, 3)))
    its.load_state_dict(training.state_dict())
    assert (list(its.history[-1].layers), its.masks == training.masks) == (["0.weight"], True)
    assert list(copy.deepcopy(training).masks.skipped) == ["2.weight"]


class Tied(nn.Module):
    """A vocabulary that is read and written through one weight, attention between, with a fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.head(self.attention(x, x, x, need_weights=False)[0])


@by_moving
def test_tied_weights_change_as_one(method: str) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    training = make(method, model, optimizer)
    assert list(training.masks) == ["embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight"]
    for _ in range(9):
        optimizer.zero_grad()
        tokens = torch.randint(11, (4, 5))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        assert model.head.weight is model.embedding.weight
        assert nonzero_names(model, dict(training.masks)) == []
    assert all(sum(change.layers[name].num_dropped for change in training.history) for name in training.masks)


@by_moving
def test_convolutions_keep_their_memory_format(method: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = make(method, model, optimizer)
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).pow(2).mean().backward()
        optimizer.step()
        assert nonzero_names(model, dict(training.masks)) == []
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert training.masks.num_zeros() == 252


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
@by_moving
def test_other_dtypes_and_lean_masks_change_in_the_same_way(method: str, dtype: torch.dtype, lean: bool) -> None:
    model = nn.Linear(16, 12, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    training = make(method, model, optimizer, lean=lean)
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(8, 16).to(dtype)).abs().pow(2).mean().backward()
        optimizer.step()
        assert nonzero_names(model, dict(training.masks)) == []
    assert training.masks.num_zeros() == 96
    assert sum(change.layers["weight"].num_dropped for change in training.history) > 0


def test_lean_masks_are_the_same_masks() -> None:
    found = []
    for lean in (False, True):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        training = make("rigl", model, optimizer, lean=lean)
        for _ in range(6):
            step(model, optimizer)
        found.append(([bits(p) for p in model.parameters()], flat(training).tolist()))
    assert found[0] == found[1]


def test_layers_that_a_step_does_not_reach_stay_as_they_are() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer)
    before = dict(training.masks)
    for _ in range(2):
        optimizer.zero_grad()
        model[2](torch.randn(8, 10)).pow(2).mean().backward()
        model[0].weight.grad = None
        optimizer.step()
    assert torch.equal(training.masks["0.weight"], before["0.weight"])
    assert not torch.equal(training.masks["2.weight"], before["2.weight"])
    assert training.history[-1].unreached == ("0.weight",)


def test_gradients_are_kept_for_one_step_only() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = make("rigl", model, optimizer, every=3)
    held = training._held().values()
    kept = []
    for _ in range(6):
        kept.append(all(mask.capture is not None for mask in held))
        assert all((mask.capture is not None) == kept[-1] for mask in held)
        step(model, optimizer)
    assert kept == [False, False, True, False, False, True]
    assert all(mask.capture is None for mask in held)
