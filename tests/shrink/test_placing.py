"""New positions lie beside those of the last unit, in every block and behind every run of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from secateur.shrink.placing import Places
from tests.shrink.models import Attention


def layouts(coupling: Coupling, added: dict[int, int]) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    """Where new positions are and what they are copies of, for every dim that grows."""
    places = Places(coupling, added)
    found = {}
    for name, dims in coupling.dims.items():
        for number, dim in enumerate(dims):
            layout = places.of(dim)
            assert places(dim) == len(layout.source) == len(layout.is_new)
            if layout.is_new.any():
                found[name, number] = layout.at.tolist(), layout.source[layout.is_new].tolist()
                old = layout.source[~layout.is_new].tolist()
                assert old == list(range(len(old)))
    return found


class Joined(nn.Module):
    """One layer's output twice, with another's between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(2, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.c(torch.cat([a, b, a.tanh()], 1))


def test_each_block_of_a_concatenation_gets_its_own() -> None:
    coupling = analyze(Joined(), torch.randn(3, 2))
    found = layouts(coupling, {0: 2, 1: 1})
    assert found["a.weight", 0] == ([3, 4], [2, 1])
    assert found["b.bias", 0] == ([2], [1])
    assert found["c.weight", 1] == ([3, 4, 7, 11, 12], [2, 1, 4, 7, 6])


def test_runs_of_positions_stay_together() -> None:
    layers = (nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(12, 2))
    coupling = analyze(nn.Sequential(*layers), torch.randn(1, 2, 2, 2))
    assert layouts(coupling, {0: 2})["2.weight", 1] == ([12, 13, 14, 15, 16, 17, 18, 19], [8, 9, 10, 11, 4, 5, 6, 7])


def test_gates_get_new_rows_each() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.o = nn.GRU(2, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.layer(x)[0])

    found = layouts(analyze(Model(), torch.randn(3, 1, 2)), {0: 1})
    assert found["layer.weight_ih_l0", 0] == ([4, 9, 14], [3, 7, 11])
    assert found["layer.weight_hh_l0", 1] == ([4], [3])


@pytest.mark.parametrize(("kind", "at"), [("heads", [8, 9, 10, 11]), ("head dims", [4, 9])])
def test_heads_are_runs_and_their_columns_are_not(kind: str, at: list[int]) -> None:
    model = Attention(8, 2, lambda a: a.head_dim**-0.5)
    coupling = analyze(model, torch.randn(1, 3, 8))
    (number,) = [n for n, group in enumerate(coupling.groups) if group.kind == kind]
    assert layouts(coupling, {number: 1})["q.weight", 0][0] == at
    assert Places(coupling, {0: 1, 1: 1}).overlapping == {1}


def test_units_are_copied_in_turn_and_again_from_the_last_one() -> None:
    coupling = analyze(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), torch.randn(1, 2))
    assert layouts(coupling, {0: 5})["0.weight", 0] == ([2, 3, 4, 5, 6], [1, 0, 1, 0, 1])
