"""Which numbers in a model's code fix which dims, seen in small models whose code is all there is."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from secateur.graph.provenance import Attribute
from secateur.graph.trace import trace
from tests.graph.cutter import cut_, some, units, zeroed

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
    "attribute // attribute": (lambda m, x: x.view(-1, m.heads, m.total // m.heads).flatten(1), {"heads", "total"}),
    "up to": (lambda m, x: torch.cat([x[:, : m.width].tanh(), x[:, m.width :]], 1), {"width"}),
    "from the end": (lambda m, x: torch.cat([x[:, : -m.width].tanh(), x[:, -m.width :]], 1), {"width"}),
    "half of an attribute": (lambda m, x: torch.cat([x[:, : m.total // 2].tanh(), x[:, m.total // 2 :]], 1), {"total"}),
    "parts": (lambda m, x: torch.cat([x[:, i * m.width : (i + 1) * m.width].tanh() for i in range(3)], 1), {"width"}),
    "narrow": (
        lambda m, x: torch.cat([x.narrow(1, 0, m.width), x.narrow(1, m.width, x.shape[1] - m.width)], 1),
        {"width"},
    ),
    "torch.narrow": (lambda m, x: x + torch.narrow(x, 1, 2, m.width).sum(1, keepdim=True), {"width"}),
    "written to": (lambda m, x: assigned(x, m.width), {"width"}),
}


def halves(x: Tensor, width: int) -> Tensor:
    """Both parts of the columns."""
    return torch.cat([x.narrow(1, 0, width), x.narrow(1, width, x.shape[1] - width).tanh()], 1)


def assigned(x: Tensor, width: int) -> Tensor:
    """The last columns replaced by others."""
    y = x.clone()
    y[:, -width:] = x[:, :width]
    return y


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
}


@pytest.mark.parametrize("how", LITERAL)
def test_numbers_written_in_the_code_keep_their_dim_whole_and_say_why(how: str) -> None:
    _, coupling = of(LITERAL[how])
    assert not coupling.groups
    assert any(
        kept.name == "a.weight" and kept.dim == 0 and "written in the code" in kept.why for kept in coupling.kept
    )


PARTLY: dict[str, tuple[Callable[[Body, Tensor], Tensor], set[int]]] = {
    "up to": (lambda m, x: torch.cat([x[:, :5].tanh(), x[:, 5:]], 1), set(range(5, 12))),
    "from the end": (lambda m, x: torch.cat([x[:, :-5].tanh(), x[:, -5:]], 1), set(range(7))),
    "between": (lambda m, x: x + x[:, 3:5].sum(1, keepdim=True), set(range(5, 12))),
    "narrow": (lambda m, x: x + torch.narrow(x, 1, 3, 2).sum(1, keepdim=True), set(range(5, 12))),
    "method": (lambda m, x: x + x.narrow(dim=1, start=3, length=2).sum(1, keepdim=True), set(range(5, 12))),
    "one": (lambda m, x: x * x[:, 2, None].sigmoid(), set(range(3, 12))),
    "the last but one": (lambda m, x: x * x[..., -2, None].sigmoid(), set(range(10))),
    "after a literal": (
        lambda m, x: torch.cat([x[:, :2], x[:, 2 : 2 + m.width].tanh(), x[:, 2 + m.width :]], 1),
        set(range(2, 12)),
    ),
    "with an ellipsis and a new dim": (lambda m, x: x + x[None, ..., :4].sum(-1).t(), set(range(4, 12))),
}


@pytest.mark.parametrize("how", PARTLY)
def test_a_literal_boundary_keeps_the_positions_that_it_counts(how: str) -> None:
    code, free = PARTLY[how]
    model, coupling = of(code)
    removable = {p for p in range(12) if coupling.units_at("a.weight", 0, p)}
    assert removable == free
    x = torch.randn(2, 4, dtype=torch.float64)
    for seed in range(4):
        gone = some(coupling, units(coupling), seed, share=0.5)
        wanted = zeroed(model, coupling, gone)(x)
        smaller = copy.deepcopy(model)
        cut_(smaller, analyze(smaller, x), gone)
        assert smaller.b.weight.shape[1] < 12
        torch.testing.assert_close(smaller(x), wanted, rtol=1e-12, atol=1e-12)


SOMEWHERE = 5

UNKNOWN: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "a name": lambda m, x: torch.cat([x[:, :SOMEWHERE].tanh(), x[:, SOMEWHERE:]], 1),
    "int()": lambda m, x: torch.cat([x[:, : int(m.width)].tanh(), x[:, int(m.width) :]], 1),
    "a position": lambda m, x: x * x[:, SOMEWHERE, None].sigmoid(),
    "narrow": lambda m, x: x + x.narrow(1, 0, SOMEWHERE).sum(1, keepdim=True),
}


@pytest.mark.parametrize("how", UNKNOWN)
def test_a_boundary_that_is_neither_literal_nor_known_keeps_its_dim_whole(how: str) -> None:
    _, coupling = of(UNKNOWN[how])
    assert not coupling.groups
    if how != "a position":
        (why,) = [kept.why for kept in coupling.kept if (kept.name, kept.dim) == ("a.weight", 0)]
        assert re.fullmatch(r"a part .* comes from nowhere that is known \(test_watching\.py:\d+\)", why)


@pytest.mark.parametrize(
    "divided", [lambda m, x: x.shape[1] // 2, lambda m, x: m.total // 2], ids=["shape", "attribute"]
)
def test_halves_keep_the_same_positions(divided: Callable[[Body, Tensor], int]) -> None:
    def code(m: Body, x: Tensor) -> Tensor:
        half = divided(m, x)
        return torch.cat([x[:, :half].tanh(), x[:, half:]], 1)

    model, coupling = of(code)
    (group,) = coupling.groups
    assert len(group.units) == 6
    assert [coupling.units_at("a.weight", 0, p) for p in range(6)] == [
        coupling.units_at("a.weight", 0, p) for p in range(6, 12)
    ]
    x = torch.randn(2, 4, dtype=torch.float64)
    wanted = zeroed(model, coupling, group.units[1:3])(x)
    cut_(model, coupling, group.units[1:3])
    assert model.a.weight.shape[0] == 8
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_shapes_that_were_compared_and_equal_stay_equal() -> None:
    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            one, two = self.a(x), self.b(x)
            return self.c(one) + self.d(two) if one.shape == two.shape else self.c(one)

    coupling = analyze(Compared(), torch.randn(2, 5))
    (group,) = coupling.groups
    assert len(group.units) == 6
    assert group.footprint.keys() >= {("a.weight", 0), ("b.weight", 0), ("c.weight", 1), ("d.weight", 1)}


def test_a_boundary_with_a_source_counts_the_positions_before_it() -> None:
    model, coupling = of(lambda m, x: torch.cat([x[:, : m.width].tanh(), x[:, m.width :]], 1))
    x = torch.randn(2, 4, dtype=torch.float64)
    gone = [u for p in (1, 2, 6, 9, 11) for u in coupling.units_at("a.weight", 0, p)]
    wanted = zeroed(model, coupling, gone)(x)
    cut_(model, coupling, gone)
    assert (model.width, model.a.weight.shape[0]) == (2, 7)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


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
    "sqrt of a product": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / math.sqrt(m.heads * m.width), True),
    "plus a float": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) * (m.width + 0.5), True),
    "tensor / attribute": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / m.total + 0 * m.width, True),
    "numpy's sqrt ** 1": (lambda m, x: x.view(-1, m.heads, m.width).flatten(1) / np.sqrt(m.width), True),
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


IN_TORCH: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "divisor": lambda m, x: x / m.width,
    "divisor of an int tensor": lambda m, x: x * (torch.tensor(9) // m.width),
    "torch.tensor": lambda m, x: x / torch.tensor(m.width),
    "torch.tensor of a list": lambda m, x: x / torch.tensor([m.width]).sqrt(),
    "torch.as_tensor of nested lists": lambda m, x: x / torch.as_tensor([[m.width]]).sqrt(),
    "torch.full": lambda m, x: x / torch.full((1,), m.width),
    "torch.full, by name": lambda m, x: x / torch.full((1,), fill_value=m.width),
    "torch.full_like": lambda m, x: x / torch.full_like(x, m.width),
    "new_full": lambda m, x: x / x.new_full((1,), m.width),
    "torch.where": lambda m, x: torch.where(x > 0, x, m.width),
}


@pytest.mark.parametrize("how", IN_TORCH)
def test_a_size_that_torch_computes_with_keeps_its_dim(how: str) -> None:
    _, coupling = of(lambda m, x: IN_TORCH[how](m, x.view(-1, m.heads, m.width).flatten(1)))
    assert [len(group.units) for group in coupling.groups] == [3]


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


class Scale(nn.Module):
    """A scale for each channel that stores the shape under which it is used, ones included."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shape = (channels, 1, 1)
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.view(self.shape)


def test_stored_shapes_with_ones_follow() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), Scale(8), nn.Conv2d(8, 2, 1)).double()
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    coupling = analyze(model, x)
    (group,) = coupling.groups
    reference = zeroed(model, coupling, group.units[:3])
    cut_(model, coupling, group.units[:3])
    assert model[1].shape == (5, 1, 1)
    torch.testing.assert_close(model(x), reference(x))


class Thirds(nn.Module):
    """Parts of a bias that are told by its number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bias, self.b = nn.Linear(4, 12, bias=False), nn.Parameter(torch.randn(12)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.clone()
        length = bias.numel() // 3
        bias[length : 2 * length].zero_()
        x = (self.a(x) + bias).view(len(x), 3, -1)
        return self.b(x[:, 0] * x[:, 1] + x[:, 2])


def test_numbers_of_elements_follow() -> None:
    model, x = Thirds().double(), torch.randn(2, 4, dtype=torch.float64)
    coupling = analyze(model, x)
    (group,) = coupling.groups
    assert len(group.units) == 4
    reference = zeroed(model, coupling, group.units[1:3])
    cut_(model, coupling, group.units[1:3])
    torch.testing.assert_close(model(x), reference(x))
