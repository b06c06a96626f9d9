"""Which formats of a layer are tried, and with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from secateur.runtime import LINEAR_FORMATS, choosing
from secateur.runtime.choosing import Choice, choose
from tests.runtime.formats.references import KEPT_DENSE, masked


def layer(sparsity: float = 0.8, height: int = 1) -> nn.Linear:
    made = nn.Linear(48, 64).requires_grad_(False)
    made.weight.copy_(masked((64, 48), sparsity, height))
    return made


def chosen(module: nn.Module, *shapes: tuple[int, ...], **kwargs: Any) -> Choice:
    options: dict[str, Any] = {"relu": False, "values": torch.float32, "margin": 0.0, "allowed": None}
    return choose(module, [torch.Size(s) for s in shapes], **(options | kwargs), between=lambda: None)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been measured, each run once; the last takes the least."""
    names: list[str] = []

    def in_one_call(runs: dict[str, Callable[[], object]], between: object) -> dict[str, float]:
        for run in runs.values():
            run()
        names.extend(runs)
        return {name: 1 / i for i, name in enumerate(runs, 1)}

    monkeypatch.setattr(choosing, "_seconds", in_one_call)
    return names


@pytest.mark.parametrize(("rows", "is_tried"), [(1, False), (2, True), (3, True), (4, True), (5, False)])
def test_format_is_tried_for_the_rows_that_it_is_for(
    rows: int, is_tried: bool, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LINEAR_FORMATS, "few", dataclasses.replace(KEPT_DENSE, name="few", rows=(2, 4)))
    chosen(layer(), (rows, 48))
    assert ("few" in tried) == is_tried
    tried.clear()
    chosen(layer(), (100, 48), (rows, 1, 48))
    assert ("few" in tried) == is_tried


def test_format_is_tried_where_it_can_hold_the_weight(tried: list[str]) -> None:
    chosen(layer(), (3, 48))
    assert "grouped" not in tried
    assert tried[0] == "dense"
    chosen(layer(height=32), (3, 48))
    assert "grouped" in tried


def test_native_formats_are_tried_where_the_library_is(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur._native.library", lambda: None)
    chosen(layer(), (3, 48))
    assert tried == ["dense", "torch csr"]


def test_fastest_is_taken_with_what_was_measured(tried: list[str]) -> None:
    found = chosen(layer(), (3, 48), allowed=["torch csr"])
    assert found.format == "torch csr"
    assert found.seconds == {"dense": 1.0, "torch csr": 0.5}
    assert found.speedup == 2.0
    assert found.why == ""
    assert Choice().speedup == 1.0


def test_every_size_counts_once_and_only_some(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []

    class Sees(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given.append(tuple(x.shape))
            return super().forward(x)

    module = layer()
    module.__class__ = Sees
    monkeypatch.setattr(choosing, "LAYERS", (Sees,))
    chosen(module, (1, 48), (2, 48), (1, 48), (3, 48), (4, 48), allowed=["torch csr"])
    assert given == [(1, 48), (2, 48), (3, 48)]


@pytest.mark.parametrize("sparsity", [0.0, 0.2])
def test_weight_with_few_zeros_is_not_tried(sparsity: float, tried: list[str]) -> None:
    assert chosen(layer(sparsity), (3, 48)).why == "less than 30% zeros"
    assert tried == []
