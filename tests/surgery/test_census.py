"""What can be found to refer to a parameter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from secateur.surgery.census import census, holds


def test_census_finds_the_optimizers_that_hold_a_parameter() -> None:
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    mine, both = torch.optim.SGD([weight]), torch.optim.Adam([other, weight])
    strange = torch.optim.SGD([other])
    found = census([weight]).optimizers
    assert {id(o) for o in found} == {id(mine), id(both)}
    assert holds(mine, weight)
    assert not holds(strange, weight)


def test_census_finds_wrappers_around_a_parameter() -> None:
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    wrapper, strange = (DistributedDataParallel.__new__(DistributedDataParallel) for _ in range(2))
    for module, inner in ((wrapper, layer), (strange, other)):
        nn.Module.__init__(module)
        module.module = inner
    assert [id(w) for w in census([layer.weight]).wrappers] == [id(wrapper)]


def test_census_passes_over_objects_that_are_half_built() -> None:
    half_built = [torch.optim.SGD.__new__(torch.optim.SGD), DistributedDataParallel.__new__(DistributedDataParallel)]
    found = census([nn.Parameter(torch.ones(2))])
    assert (found.optimizers, found.wrappers) == ([], [])
    assert len(half_built) == 2


def test_census_finds_graphs_through_any_number_of_nodes() -> None:
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    loss = (weight * 2).tanh().sum()
    unrelated = (other * 2).tanh().sum()
    nodes = census([weight]).nodes
    assert loss.grad_fn in nodes
    assert unrelated.grad_fn not in nodes


def test_census_finds_an_intermediate_of_which_nothing_else_is_alive() -> None:
    weight = nn.Parameter(torch.ones(2))
    kept = [(weight * 2).exp()]
    assert census([weight]).nodes == [kept[0].grad_fn]


def test_census_sees_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return 2 * gradient

    weight = nn.Parameter(torch.ones(2))
    out = Double.apply(weight)
    assert census([weight]).nodes == [out.grad_fn]


def test_census_does_not_wake_tensor_subclasses() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> Tensor:
            raise AssertionError("asked")

    weight = nn.Parameter(torch.ones(2))
    loud = (weight * 2).as_subclass(Loud)
    assert len(census([weight]).nodes) == 2  # the view of another class, and its base
    assert type(loud) is Loud


def test_census_passes_over_views_whose_maker_is_lost() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    base = weight * 1
    lost = base.unbind(0)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="view"):
        _ = lost[0].grad_fn
    assert census([weight]).nodes == [base.grad_fn]


def test_census_of_a_parameter_that_nothing_refers_to_is_empty() -> None:
    found = census([nn.Parameter(torch.ones(2))])
    assert (found.optimizers, found.wrappers, found.nodes) == ([], [], [])
