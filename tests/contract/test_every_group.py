"""Invariants 2, 3, 4 and 6 over every group of every structure: a unit of it goes, or the plan says why it stays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import UnsupportedError
from secateur.graph.capture import tensors_in
from secateur.graph.coupling import analyze
from secateur.graph.trace import named_tensors
from secateur.shrink import ShrinkPlan, plan_of
from tests.graph.test_structures import ALL, made
from tests.shrink.models import is_unchanged, state_of

UNTRAINED = ("results_put_where_told",)
"""torch computes no gradients of ``out=``."""


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Any, ...]) -> None:
    """One step of training."""
    optimizer.zero_grad()
    results = [tensor for tensor in tensors_in(model(*(x.clone() for x in inputs))) if tensor.requires_grad]
    sum(tensor.square().mean() for tensor in results).backward()
    optimizer.step()


def momenta(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        name: optimizer.state[parameter]["momentum_buffer"].clone()
        for name, parameter in model.named_parameters()
        if optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
    }


def nothing_happens(plan: ShrinkPlan, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A failure at the very end leaves everything as it was, bit by bit."""

    def fails(_: nn.Module) -> None:
        raise ArithmeticError("at the very end")

    before, state = state_of(model), momenta(model, optimizer)
    with pytest.raises(UnsupportedError, match="at the very end"):
        plan.apply_(model, optimizer=optimizer, tried_on=fails)
    assert is_unchanged(model, before)
    after = momenta(model, optimizer)
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize("name", [name for name, structure in ALL.items() if structure.units])
def test_a_unit_of_every_group_goes_with_all_that_refers_to_it(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = made(ALL[name])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and name not in UNTRAINED]
    optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9) if trained else None
    if optimizer is not None:
        step(model, optimizer, inputs)
    coupling = analyze(model, inputs)
    assert coupling.groups
    for group in coupling.groups:
        plan = plan_of(model, coupling, group.units[:1] if len(group.units) > 1 else ())
        if not plan.keep:
            assert len(group.units) == 1 or any(group.name in why for why in plan.kept_whole)
            continue
        plan.save(tmp_path / "plan")
        assert ShrinkPlan.load(tmp_path / "plan") == plan
        assert plan.verify(model, inputs).is_right
        twin, its_optimizer = copy.deepcopy((model, optimizer))
        if its_optimizer is None:
            continue
        nothing_happens(plan, twin, its_optimizer)
        before, identities = momenta(twin, its_optimizer), {n: id(p) for n, p in twin.named_parameters()}
        plan.apply_(twin, optimizer=its_optimizer, tried_on=inputs)
        assert {n: id(p) for n, p in twin.named_parameters()} == identities
        for key, momentum in momenta(twin, its_optimizer).items():
            expected = before[key]
            for dim, keep in plan.keep.get(key, {}).items():
                expected = expected.index_select(dim, keep)
            assert torch.equal(momentum, expected)
        assert any(tensor.shape != plan.shapes[key] for key, tensor in named_tensors(twin).items() if key in plan.keep)
        step(twin, its_optimizer, inputs)
