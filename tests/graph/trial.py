"""One trial of a generated model: some units go, and what is left must compute what it should and go on training."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur._errors import UnsupportedError
from secateur.graph.capture import tensors_in
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.pretend import run_without
from secateur.graph.trace import named_tensors
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.planning import plan_of
from tests.graph.generated import Generated


@dataclass(frozen=True)
class Found:
    """What a trial has seen.

    Args:
        units: Number of units in the model.
        exact: Of these, how many no op mixes.
        removable: Share of the parameters that would go with all units.
        removed: Number of units removed in the last part of the trial.
        moved: How much zeroing the exact ones changed the outputs.
    """

    units: int
    exact: int
    removable: float
    removed: int
    moved: float


def try_out(net: Generated) -> Found:
    """Remove units of a model: none, then exact ones, then any.

    Raises:
        AssertionError: The smaller model is wrong.
    """
    choose = random.Random(net.seed)
    model, x = net.model, net.inputs
    optimizer = choose.choice([
        partial(torch.optim.SGD, lr=1e-3, momentum=0.9), partial(torch.optim.Adam, lr=1e-3),
        partial(torch.optim.RMSprop, lr=1e-4),
    ])(model.parameters())  # fmt: skip
    step(model, optimizer, x)
    coupling = analyze(model.train(choose.random() < 0.2), (x,))
    model.eval()
    nothing_changes(model, coupling, x)
    exact = [unit for group in coupling.groups for unit in some(group.units, choose) if not coupling.mixes[unit]]
    plan = plan_of(model, coupling, exact)
    moved = applied(model, optimizer, plan, x, run(zeroed(model, plan), x)) if exact else 0.0
    coupling = analyze(model, (x,))
    units = [unit for group in coupling.groups for unit in some(group.units, choose)]
    plan = plan_of(model, coupling, units)
    cut = [group for group, its in zip(coupling.groups, plan.groups, strict=True) if its.after < its.before]
    units = sorted(set(units).intersection(*[[unit for group in cut for unit in group.units]]))
    applied(model, optimizer, plan, x, without(net, coupling, units, plan))
    everything = [unit for group in coupling.groups for unit in group.units]
    share = 1 - coupling.num_parameters(everything) / coupling.num_parameters()
    return Found(coupling.num_units, int((~coupling.mixes[everything]).sum()), share, len(units), moved)


def some(units: Iterable[int], choose: random.Random) -> list[int]:
    """About 30 % of a group's units, such that at least two stay."""
    units = list(units)
    return sorted(choose.sample(units, max(0, min(len(units) - 2, max(1, round(0.3 * len(units)))))))


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return tensors_in(model(x.clone()))


def step(model: nn.Module, optimizer: Any, x: Tensor) -> None:
    """One step of training."""
    model.train()
    optimizer.zero_grad()
    sum(tensor.square().mean() for tensor in tensors_in(model(x.clone()))).backward()
    optimizer.step()
    model.eval()


def nothing_changes(model: nn.Module, coupling: Coupling, x: Tensor) -> None:
    """A plan that removes nothing is no change."""
    plan = plan_of(model, coupling, [])
    assert (plan.keep, plan.numbers) == ({}, ())
    twin = plan.apply_(copy.deepcopy(model))
    assert all(torch.equal(one, other) for one, other in zip(run(twin, x), run(model, x), strict=True))


def applied(model: nn.Module, optimizer: Any, plan: ShrinkPlan, x: Tensor, wanted: list[Tensor] | None) -> float:
    """Apply a plan to a copy, compare its outputs if they are known, and go on training; how far they have moved."""
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    plan.apply_(twin, optimizer=its_optimizer)
    follows(model, twin, its_optimizer, plan)
    before, found = run(model, x), run(twin, x)
    size = max(float(tensor.abs().max()) for tensor in before)
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in before]
    for one, other in zip(found, wanted or found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * size)
    step(twin, its_optimizer, x)
    follows(model, twin, its_optimizer, plan)
    return max(float((one - other).abs().max()) for one, other in zip(before, found, strict=True)) / size


def without(net: Generated, coupling: Coupling, units: list[int], plan: ShrinkPlan) -> list[Tensor] | None:
    """What the model gives as if the units were gone; None where other experts are chosen then, so other ops run."""
    try:
        return tensors_in(run_without(zeroed(net.model, plan), (net.inputs,), coupling, units).result)
    except UnsupportedError:
        if "experts" not in str(net):
            raise
        return None


def zeroed(model: nn.Module, plan: ShrinkPlan) -> nn.Module:
    """A copy with zeros where positions go."""
    twin = copy.deepcopy(model)
    parameters, tensors = dict(twin.named_parameters()), named_tensors(twin)
    with torch.no_grad():
        for name, dims in plan.keep.items():
            if name.endswith("original1"):
                _columns_zeroed_(tensors[name], tensors[f"{name[:-1]}0"], dims)
            elif name in parameters or name.endswith(("0._u", "0._v")):
                for dim, keep in dims.items():
                    tensors[name].index_fill_(dim, _gone(tensors[name], dim, keep), 0.0)
            if name.endswith(("0._u", "0._v")):  # of spectral norm, always of length one
                tensors[name].copy_(F.normalize(tensors[name], dim=0))
    return twin


def _columns_zeroed_(direction: Tensor, length: Tensor, dims: dict[int, Tensor]) -> None:
    """Zero columns of a weight that weight norm computes, the others as they were; its rows go by their lengths."""
    whole = direction.flatten(1).norm(dim=1)
    for dim, keep in dims.items():
        if dim:
            direction.index_fill_(dim, _gone(direction, dim, keep), 0.0)
    length.mul_((direction.flatten(1).norm(dim=1) / whole).view_as(length))


def _gone(tensor: Tensor, dim: int, keep: Tensor) -> Tensor:
    """The positions that go."""
    return torch.tensor(sorted(set(range(tensor.shape[dim])) - set(keep.tolist())))


def follows(model: nn.Module, twin: nn.Module, optimizer: Any, plan: ShrinkPlan) -> None:
    """Tensors have the planned shapes, and gradients and state those of their parameters."""
    before, after = named_tensors(model), named_tensors(twin)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        shape = list(before[name].shape)
        for dim, keep in plan.keep.get(name, {}).items():
            shape[dim] = len(keep)
        assert list(tensor.shape) == shape, name
    assert sum(p.numel() for p in twin.parameters()) == plan.parameters[1]
    for parameter in twin.parameters():
        assert parameter.grad is None or parameter.grad.shape == parameter.shape
        for value in optimizer.state[parameter].values():
            assert not isinstance(value, Tensor) or value.dim() == 0 or value.shape == parameter.shape
