"""Whether zeroing units is removing them, against models that are zeroed and cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from tests.graph.cutter import cut_, exact_units, some, units, zeroed
from tests.graph.structures import Net, raw

Forward = Callable[[Any, Tensor], Tensor]


def made(code: Forward) -> tuple[nn.Module, Tensor, Coupling]:
    """Two linear layers 6 -> 8 and one 8 -> 4 round some code, four learned tokens, and one scale."""
    torch.manual_seed(0)
    parts = {"one": nn.Linear(6, 8), "other": nn.Linear(6, 8), "last": nn.Linear(8, 4), "tokens": raw(4, 6)}
    model = Net(code, **parts, scale=raw(8), plain=nn.LayerNorm(8, elementwise_affine=False)).double().eval()
    x = torch.randn(5, 6, dtype=torch.float64)
    return model, x, analyze(model, x)


def difference(code: Forward, among: Callable[[Coupling], list[int]]) -> float:
    """How far the smaller model is from the zeroed one, at most, without some of these units."""
    found = 0.0
    for seed in range(3):
        model, x, coupling = made(code)
        gone = some(coupling, among(coupling), seed)
        wanted = zeroed(model, coupling, gone)(x)
        smaller = copy.deepcopy(model)
        cut_(smaller, analyze(smaller, x), gone)
        found = max(found, float((smaller(x) - wanted).detach().abs().max()))
    return found


def in_place(x: Tensor) -> Tensor:
    """A sigmoid of the second half of the rows only."""
    y = x.clone()
    y[2:].sigmoid_()
    return y


EXACT: dict[str, Forward] = {
    "sum": lambda m, x: m.one(x).relu().sum(1, keepdim=True) + m.last(m.other(x)),
    "norm": lambda m, x: m.last(m.other(x)) * m.one(x).tanh().norm(dim=1, keepdim=True),
    "product with one clean factor": lambda m, x: (m.one(x).sigmoid() @ m.other(x).t()) @ m.last(m.one(x)),
    "clean after a gate": lambda m, x: (m.one(x).sigmoid() * m.other(x)).sum(1, keepdim=True),
    "clean through views": lambda m, x: m.one(x).view(5, 2, -1).transpose(1, 2).flatten(1).sum(1, keepdim=True),
    "clean in a difference": lambda m, x: (m.one(x) - m.other(x) * m.scale).abs().sum(1, keepdim=True),
    "clean after a division": lambda m, x: (m.one(x) / (1 + m.other(x).exp())).sum(1, keepdim=True),
    "clamped around zero": lambda m, x: m.one(x).clamp(-1.0, 2.0).sum(1, keepdim=True),
    "filled": lambda m, x: m.one(x).masked_fill(x[:, :1] > 0, 0.0).sum(1, keepdim=True),
    "joined": lambda m, x: torch.cat([m.one(x), m.other(x)], 1).sum(1, keepdim=True),
    "a weight": lambda m, x: m.last(m.one(x).sigmoid()),
    "columns of attention": lambda m, x: m.last(F.scaled_dot_product_attention(
        m.one(x)[None], m.other(x)[None], m.one(x)[None], scale=0.5))[0],
}  # fmt: skip

MIXED: dict[str, Forward] = {
    "sum": lambda m, x: m.one(x).sigmoid().sum(1, keepdim=True),
    "norm": lambda m, x: m.one(x).exp().norm(dim=1, keepdim=True),
    "running sum": lambda m, x: m.last(m.one(x).cos().cumsum(1)),
    "product of two": lambda m, x: (m.one(x).sigmoid() @ m.other(x).exp().t()).sum(1, keepdim=True),
    "plus a number": lambda m, x: ((m.one(x) + 1) @ (m.other(x) + 1).t()).sum(1, keepdim=True),
    "plus a column": lambda m, x: (m.one(x) + x[:, :1]).sum(1, keepdim=True),
    "in place": lambda m, x: m.one(x).add_(1).sum(1, keepdim=True),
    "in place through a view": lambda m, x: in_place(m.one(x)).sum(1, keepdim=True),
    "clamped away from zero": lambda m, x: m.one(x).clamp(min=0.5).sum(1, keepdim=True),
    "filled": lambda m, x: m.one(x).masked_fill(x[:, :1] > 0, 2.0).sum(1, keepdim=True),
    "norm without scale": lambda m, x: (m.plain(m.one(x)) @ m.plain(m.other(x)).t()).sum(1, keepdim=True),
    "power zero": lambda m, x: (m.one(x) ** 0).sum(1, keepdim=True),
    "distances": lambda m, x: torch.cdist(m.one(x).cos(), m.other(x), p=1.0),
    "attention by sigmoid over learned tokens": lambda m, x: m.last(
        (m.one(x) @ m.other(m.tokens).t()).sigmoid() @ m.one(m.tokens)),
}  # fmt: skip


@pytest.mark.parametrize("how", EXACT)
def test_units_whose_zeros_stay_zeros_are_exact(how: str) -> None:
    _, _, coupling = made(EXACT[how])
    assert exact_units(coupling) == units(coupling) != []
    assert not coupling.mixes[units(coupling)].any()
    assert difference(EXACT[how], units) < 1e-12


@pytest.mark.parametrize("how", MIXED)
def test_units_whose_zeros_do_not_stay_are_mixed(how: str) -> None:
    _, _, coupling = made(MIXED[how])
    mixed = [unit for unit in units(coupling) if coupling.mixes[unit]]
    assert mixed
    assert difference(MIXED[how], lambda c: [unit for unit in units(c) if c.mixes[unit]]) > 1e-6
    if len(mixed) < len(units(coupling)):
        assert difference(MIXED[how], exact_units) < 1e-12
