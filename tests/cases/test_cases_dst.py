"""What users ran into with sparse training whose masks change: cases 54 and 55, each with its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import SET, GraNet, Masks, RigL
from tests.masks.oracles import bits, is_zero, moments

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD-nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "Adam-amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW-amsgrad-fused": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True, "fused": True}),
}

by_optimizer = pytest.mark.parametrize(("kind", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS)


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()


# ---- case 54: momentum of before is carried over when a weight is regrown


@by_optimizer
def test_case_54_dropped_and_regrown_entry_has_no_history(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    net, x = nn.Linear(6, 6, bias=False), torch.randn(8, 6)
    optimizer = kind(net.parameters(), **options)
    trained(net, optimizer, x, 5)
    before = {name: value.clone() for name, value in moments(optimizer, net.weight).items()}
    assert all(float(value[0, 0]) != 0.0 for value in before.values())
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[0, 0] = False
    masks = Masks.from_dict(net, {"weight": mask}, optimizer)
    masks.update_({"weight": torch.ones(6, 6, dtype=torch.bool)})
    for name, value in moments(optimizer, net.weight).items():
        assert float(value[0, 0]) == 0.0, name
        assert bits(value[mask]) == bits(before[name][mask]), name
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    gradient = net.weight.grad[0, 0].clone()
    optimizer.step()
    if kind is torch.optim.SGD:
        nesterov = 1.9 if options.get("nesterov") else 1.0
        torch.testing.assert_close(net.weight.detach()[0, 0], -0.1 * nesterov * gradient)


@by_optimizer
@pytest.mark.parametrize("method", [RigL, SET, GraNet])
def test_case_54_first_move_of_grown_weights_is_that_of_new_ones(
    method: Any, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    net, x = nn.Linear(12, 12, bias=False), torch.randn(8, 12)
    optimizer = kind(net.parameters(), **options)
    trained(net, optimizer, x, 5)
    training = method(net, optimizer, sparsity=0.5, every=3, end_step=3, drop_fraction=lambda step: 0.4)
    trained(net, optimizer, x, 2)
    kept = training.masks["weight"]
    trained(net, optimizer, x, 1)
    grown, gone = training.masks["weight"] & ~kept, kept & ~training.masks["weight"]
    assert int(grown.sum()) == int(gone.sum()) == round(0.4 * 72)
    assert is_zero(net.weight.detach()[grown | gone])
    assert all(is_zero(value[grown | gone]) for value in moments(optimizer, net.weight).values())
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    gradient = net.weight.grad[grown].clone()
    optimizer.step()
    if options.get("momentum") and not options.get("nesterov"):
        torch.testing.assert_close(net.weight.detach()[grown], -0.1 * gradient, rtol=0, atol=0)
    assert bool((net.weight.detach()[grown] * gradient <= 0.0).all()), "downhill"


# ---- case 55: growth needs the dense gradient, and nobody else may see it


@pytest.mark.parametrize("clip", [None, 1e-3])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_case_55_growth_reads_the_dense_gradient_which_clipping_does_not_see(
    set_to_none: bool, micro_batches: int, clip: float | None
) -> None:
    net = nn.Linear(5, 5, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    training = RigL(net, optimizer, sparsity=0.5, every=2, end_step=100, drop_fraction=lambda step: 0.5)
    for _ in range(6):
        batches = torch.randn(micro_batches, 3, 5)
        kept = training.masks["weight"]
        weight = net.weight.detach().clone().requires_grad_(True)  # masked data, dense gradient
        sum((x @ weight.t()).pow(2).sum() for x in batches).backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        for x in batches:
            net(x).pow(2).sum().backward()
            assert is_zero(net.weight.grad[~kept])
        norm = nn.utils.clip_grad_norm_(net.parameters(), clip or 1e9)
        torch.testing.assert_close(norm, weight.grad[kept].norm())
        optimizer.step()
        now = training.masks["weight"]
        assert is_zero(net.weight.detach()[~now])
        assert int(now.sum()) == int(kept.sum()) == 13
        size = weight.grad.abs().masked_fill(kept, -1.0).flatten()
        expected = size.topk(6).indices if training.step % 2 == 0 else []
        assert sorted((now & ~kept).flatten().nonzero().flatten().tolist()) == sorted(map(int, expected))


def test_case_55_batch_that_was_thrown_away_does_not_count() -> None:
    net = nn.Linear(5, 5, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    training = RigL(net, optimizer, sparsity=0.5, every=1, end_step=100)
    kept = training.masks["weight"]
    for set_to_none in (True, False):
        (net(torch.randn(3, 5)).pow(2).sum() * torch.inf).backward()
        optimizer.zero_grad(set_to_none=set_to_none)
    x = torch.randn(3, 5)
    weight = net.weight.detach().clone().requires_grad_(True)
    (x @ weight.t()).pow(2).sum().backward()
    net(x).pow(2).sum().backward()
    optimizer.step()
    grown = training.masks["weight"] & ~kept
    size = weight.grad.abs().masked_fill(kept, -1.0).flatten()
    assert sorted(grown.flatten().nonzero().flatten().tolist()) == sorted(size.topk(4).indices.tolist())
