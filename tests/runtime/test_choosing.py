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

PREPACKED = ["prepacked"] if not LINEAR_FORMATS["prepacked"].absence() else []
"""The format that is there with oneDNN."""


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
    assert tried == ["dense", "torch csr", *PREPACKED]


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
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_weight_with_few_zeros_is_tried_in_dense_forms_alone(kind: str, sparsity: float, tried: list[str]) -> None:
    if kind == "linear":
        found, last = chosen(layer(sparsity), (3, 48)), []
    else:
        module = nn.Conv2d(48, 64, 1).requires_grad_(False)
        module.weight.copy_(masked((64, 48, 1, 1), sparsity))
        found, last = chosen(module, (3, 48, 2, 2)), ["channels last"]
    assert tried == ["dense", *PREPACKED, *last]
    assert found.format == tried[-1]


def test_forms_that_keep_zeros_are_left_out_where_size_counts_more_than_time(tried: list[str]) -> None:
    chosen(layer(), (3, 48), margin=-0.1)
    assert "torch csr" in tried
    assert "prepacked" not in tried


def test_layer_that_no_format_makes_faster_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_seconds", lambda runs, between: dict.fromkeys(runs, 1.0))
    assert chosen(layer(0.2), (3, 48), margin=0.1).why == "less than 30% zeros"
    assert chosen(layer(0.8), (3, 48), margin=0.1).why == "no format is faster"


def test_convolution_whose_window_can_lie_beside_the_image_keeps_its_memory_order(tried: list[str]) -> None:
    found = chosen(nn.Conv2d(16, 16, 1, padding=1).requires_grad_(False), (1, 16, 3, 1))
    assert found.format == "dense"
    assert tried == []
