"""Experts that the example input does not reach: cut like those that it reaches, so that they can be used later."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import analyze
from secateur.graph.siblings import reached_siblings
from secateur.shrink import plan_of


class Routed(nn.Module):
    """Experts of which an argument names one."""

    def __init__(self, experts: int = 3, by_name: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)) for _ in range(experts))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        x = self.stem(x)
        return self.head(x + list(self.experts.children())[expert](x))


@pytest.mark.parametrize("by_name", [False, True])
def test_unreached_experts_are_cut_like_reached_ones_and_equal_their_zeroed_selves(by_name: bool) -> None:
    torch.manual_seed(0)
    model, x = Routed(by_name=by_name).double(), torch.randn(3, 4, dtype=torch.float64)
    coupling = analyze(model, (x, 1))
    units = [unit for group in coupling.groups for unit in group.units[1:4]]
    plan = plan_of(model, coupling, units)
    smaller, zeroed = plan.apply_(copy.deepcopy(model)), plan.removed_zeroed_(copy.deepcopy(model))
    assert next(smaller.experts.children())[0].weight.shape == (3, 5)
    for expert in range(3):
        torch.testing.assert_close(smaller(x, expert), zeroed(x, expert))


def test_siblings_are_of_one_class_and_one_shape() -> None:
    model = Routed()
    model.experts.append(nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 8)))
    model.experts.append(nn.Bilinear(8, 8, 8))
    tensors = dict(model.named_parameters())
    reached = {name for name in tensors if not name.startswith("experts") or name.startswith("experts.1")}
    unreached = [name for name in tensors if name not in reached]
    found = dict(reached_siblings(model, tensors, unreached, reached))
    assert found["experts.2.0.weight"] == "experts.1.0.weight"
    assert "experts.3.0.weight" not in found
    assert not any(name.startswith("experts.4") for name in found)


def test_a_parametrized_module_that_is_not_reached_stays() -> None:
    """The list of its parametrizations holds the original as a parameter, not as a module."""

    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
            self.spare = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    kept = {k.name: k.why for k in analyze(Optional(), torch.randn(2, 4)).kept}
    assert kept["spare.parametrizations.weight.original1"] == "no example input reached it"


def test_what_has_no_sibling_stays() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.spare = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    kept = analyze(Optional(), torch.randn(2, 4)).kept
    assert {k.why for k in kept if k.name == "spare.weight"} == {"no example input reached it"}
