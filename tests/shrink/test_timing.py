"""Measuring gives times for all products of a model, once each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.graph import analyze
from secateur.shrink import Budget, LatencyTable, measure_latency, plan_shrink
from secateur.shrink.latency import needs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, groups=6)
        self.c, self.d = nn.ConvTranspose1d(6, 4, 2), nn.Linear(17, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(torch.relu(self.b(self.a(x)).flatten(2))))


X = torch.randn(1, 2, 6, 6)


def test_measured_times_are_positive_and_cover_the_model() -> None:
    model = Model()
    coupling = analyze(model, X)
    state = torch.get_rng_state()
    table = measure_latency(model, coupling)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(time > 0 for grid in table.grids for time in grid.seconds)
    assert all(table.find(needed) is not None for needed in needs(coupling))
    assert "float32" in table.machine
    assert measure_latency(model, coupling) == table  # not measured again
    assert measure_latency(model, coupling, table=table) == table
    assert (
        plan_shrink(model, X, budget=Budget(latency=1.0)).latency
        == plan_shrink(model, X, sparsity=0.0, latency_table=table).latency
    )


def test_what_a_table_holds_is_kept_and_the_rest_is_measured() -> None:
    model = Model()
    coupling = analyze(model, X)
    whole = measure_latency(model, coupling)
    part = LatencyTable(whole.grids[:1], "there")
    completed = measure_latency(model, coupling, table=part)
    assert completed.grids[0] == part.grids[0]
    assert (set(completed.grids), completed.machine) == (set(whole.grids), "there")


@pytest.mark.parametrize("kind", ["meta", "no parameter"])
def test_what_cannot_be_timed_is_refused(kind: str) -> None:
    model = Model() if kind == "meta" else nn.ReLU()
    coupling = analyze(model, X)
    model.to("meta")
    message = "timing products here needs values" if kind == "meta" else "no floating-point parameter"
    with pytest.raises(InvalidInputError, match=message):
        measure_latency(model, coupling)
