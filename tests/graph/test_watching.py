"""Which numbers in a model's code fix which dims, seen in small models whose code is all there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from secateur.graph.provenance import Attribute
from secateur.graph.trace import trace

FUNCTIONAL = nn.functional


class Body(nn.Module):
    """Linear 4 -> 12, some code, linear -> 3."""

    def __init__(self, code: Callable[[Body, Tensor], Tensor], wide: int = 12) -> None:
        super().__init__()
        self.heads, self.width, self.total, self.code = 3, 4, 12, code
        self.a, self.b = nn.Linear(4, 12), nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self, self.a(x)))


def of(code: Callable[[Body, Tensor], Tensor], wide: int = 12) -> tuple[Body, Coupling]:
    model = Body(code, wide).double().eval()
    return model, analyze(model, torch.randn(2, 4, dtype=torch.float64))


def names(coupling: Coupling) -> set[str]:
    """Attributes whose new value is known, as ``name``."""
    derived = {a.name for tie in coupling.sizing.derived for a in _attributes(tie.source)}
    return {a.name for a in coupling.sizing.attributes if a.name in ("heads", "width", "total")} | derived


def _attributes(source: Any) -> list[Attribute]:
    from secateur.graph.provenance import sources_in

    return [leaf for leaf in sources_in(source) if isinstance(leaf, Attribute)]


def sizes(coupling: Coupling, unit: int) -> dict[str, int]:
    return {a.name: value for a, value in coupling.attributes([unit]).items() if a.label == ""}


FOLLOWING: dict[str, tuple[Callable[[Body, Tensor], Tensor], set[str]]] = {
    "view": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1), {"heads", "width"}),
    "view as a list": (lambda m, x: x.view([x.shape[0], m.heads, m.width]).flatten(1), {"heads", "width"}),
    "reshape": (lambda m, x: x.reshape(x.shape[0], m.heads, -1).flatten(1), {"heads"}),
    "torch.reshape": (lambda m, x: torch.reshape(x, (-1, m.heads, m.width)).flatten(1), {"heads", "width"}),
    "back by product": (
        lambda m, x: x.view(-1, m.heads, m.width).tanh().reshape(-1, m.heads * m.width),
        {"heads", "width"},
    ),
    "back by attribute": (lambda m, x: x.view(-1, m.heads, m.width).tanh().reshape(-1, m.total), {"heads", "total"}),
    "split": (lambda m, x: torch.cat([p.tanh() for p in x.split(m.width, dim=1)], 1), {"width"}),
    "unflatten": (lambda m, x: x.unflatten(1, (m.heads, m.width)).flatten(1), {"heads", "width"}),
    "zeros": (lambda m, x: x + torch.zeros(m.total, dtype=x.dtype), {"total"}),
    "new_zeros": (lambda m, x: x + x.new_zeros(x.shape[0], m.total), {"total"}),
    "full": (lambda m, x: x + torch.full((m.total,), 2.0, dtype=x.dtype), {"total"}),
    "expand": (lambda m, x: x * torch.ones(1, dtype=x.dtype).expand(m.total), {"total"}),
    "layer_norm": (lambda m, x: FUNCTIONAL.layer_norm(x, (m.total,)), {"total"}),
    "group_norm": (lambda m, x: FUNCTIONAL.group_norm(x, m.heads), {"heads"}),
    "comparison": (lambda m, x: x if x.shape[1] == m.total else x.missing, {"total"}),
    "quotient": (lambda m, x: x.view(-1, x.shape[1] // m.width, m.width).flatten(1), {"width"}),
}


@pytest.mark.parametrize("how", FOLLOWING)
def test_numbers_from_attributes_follow_so_units_can_go(how: str) -> None:
    code, expected = FOLLOWING[how]
    _, coupling = of(code)
    assert expected <= names(coupling)
    assert coupling.groups, repr(coupling)
    for group in coupling.groups:
        assert group.footprint.keys() >= {("a.weight", 0), ("a.bias", 0), ("b.weight", 1)}
        positions = coupling.positions([group.units[0]])
        smaller = Body(code, int(positions["b.weight", 1].sum())).double().eval()
        smaller.a = nn.Linear(4, smaller.b.in_features).double()
        changed = sizes(coupling, group.units[0])
        for name, value in changed.items():
            setattr(smaller, name, value)
        assert smaller(torch.randn(2, 4, dtype=torch.float64)).shape == (2, 3)


LITERAL: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "view": lambda m, x: x.view(-1, 3, 4).flatten(1),
    "reshape back": lambda m, x: x.view(-1, m.heads, m.width).tanh().reshape(-1, 12),
    "int()": lambda m, x: x.view(-1, int(m.heads), int(m.width)).flatten(1),
    "zeros": lambda m, x: x + torch.zeros(12, dtype=x.dtype),
    "split": lambda m, x: torch.cat([p.tanh() for p in x.split([5, 7], dim=1)], 1),
    "layer_norm": lambda m, x: FUNCTIONAL.layer_norm(x, (12,)),
    "slice": lambda m, x: torch.cat([x[:, :5].tanh(), x[:, 5:]], 1),
}


@pytest.mark.parametrize("how", LITERAL)
def test_numbers_written_in_the_code_keep_their_dim_whole_and_say_why(how: str) -> None:
    _, coupling = of(LITERAL[how])
    assert not coupling.groups
    assert any(
        kept.name == "a.weight" and kept.dim == 0 and "written in the code" in kept.why for kept in coupling.kept
    )


def test_a_literal_keeps_only_the_factor_that_it_fixes() -> None:
    _, coupling = of(lambda m, x: x.view(-1, 3, m.width).flatten(1))
    assert len(coupling.groups) == 1
    assert len(coupling.groups[0].units) == 4
    assert coupling.groups[0].footprint["a.weight", 0] == 3


def test_one_number_for_two_dims_ties_them() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 4
            self.a, self.b, self.c, self.d = nn.Linear(5, 8), nn.Linear(5, 12), nn.Linear(8, 2), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.a(x).view(-1, 2, self.width), self.b(x).view(-1, 3, self.width)
            return self.c(one.flatten(1)) + self.d(two.flatten(1))

    coupling = analyze(Two(), torch.randn(2, 5))
    (group,) = coupling.groups
    assert len(group.units) == 4
    assert group.footprint == {
        ("a.weight", 0): 2,
        ("a.bias", 0): 2,
        ("b.weight", 0): 3,
        ("b.bias", 0): 3,
        ("c.weight", 1): 2,
        ("d.weight", 1): 3,
    }


VALUES: dict[str, tuple[Callable[[Body, Tensor], Tensor], bool]] = {
    "attribute ** -0.5": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) * m.width**-0.5, True),
    "attributes // attribute": (
        lambda m, x: x.view(-1, m.heads, m.width).flatten(1) * ((m.heads * m.width) // m.heads) ** -0.5,
        True,
    ),
    "shape ** -0.5": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) * x.shape[1] ** -0.5, False),
    "size() / 2": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / (x.size(1) / 2), False),
    "tensor / attribute": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / m.total + 0 * m.width, True),
}


@pytest.mark.parametrize("how", VALUES)
def test_sizes_that_become_values_are_pinned_or_keep_their_dims(how: str) -> None:
    code, removable = VALUES[how]
    _, coupling = of(code)
    assert bool(coupling.groups) == removable
    if "**" in how and removable:
        assert {a.name for a in coupling.sizing.pinned} >= {"width"}
    if not removable:
        assert any("computes with its size" in kept.why for kept in coupling.kept)


def test_a_size_that_torch_divides_by_keeps_its_dim() -> None:
    _, coupling = of(lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / m.width)
    assert [len(group.units) for group in coupling.groups] == [3]
    assert any("computes with its size" in kept.why for kept in coupling.kept) or coupling.num_units == 3


def test_the_default_scale_of_attention_keeps_the_width_of_heads() -> None:
    def code(scale: float | None) -> Callable[[Body, Tensor], Tensor]:
        def run(m: Body, x: Tensor) -> Tensor:
            h = x.view(1, -1, m.heads, m.width).transpose(1, 2)
            return FUNCTIONAL.scaled_dot_product_attention(h, h, h, scale=scale).transpose(1, 2).reshape(-1, m.total)

        return run

    assert {group.kind for group in of(code(None))[1].groups} == {"heads"}
    assert {group.kind for group in of(code(0.5))[1].groups} == {"heads", "head dims"}


def test_groups_of_a_convolution_follow_the_attribute() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=4), nn.Conv2d(8, 2, 1))
    traced = trace(model, [torch.randn(1, 3, 5, 5)])
    ties = [tie for tie in traced.ties if isinstance(tie.source, Attribute) and tie.source.name == "groups"]
    assert [(tie.source.label, sum(axis.size for axis in tie.dim)) for tie in ties] == [("1", 4)]
