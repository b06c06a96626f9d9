"""Random models made of all structures: units go, and what is left is right and goes on training."""

from __future__ import annotations

import copy
import gc
import importlib
from collections.abc import Iterator
from statistics import mean

import pytest
import torch

from secateur.graph import analyze
from secateur.shrink import plan_of
from tests.graph.generated import KINDS, Generated, generate
from tests.graph.trial import Found, applied, run, try_out, zeroed

for module in ("anywhere", "heads", "images", "layers", "tokens"):
    importlib.import_module(f"tests.graph.kinds.{module}")

FEW, MANY = 200, 5_000


@pytest.fixture(autouse=True)
def quick_search() -> Iterator[None]:
    """What is there already refers to none of these models, so surgery need not look through it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tried(seed: int) -> Found:
    net = generate(seed)
    try:
        return try_out(net)
    except Exception as error:
        error.add_note(str(net))
        raise


@pytest.mark.parametrize("first", range(0, FEW, 20))
def test_model_without_units_is_right_and_trains(first: int) -> None:
    found = [tried(seed) for seed in range(first, first + 20)]
    assert mean(result.units > 0 for result in found) >= 0.9
    assert mean(result.removable for result in found) > 0.7
    assert mean(result.moved > 1e-4 for result in found) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FEW, FEW + MANY, 100))
def test_any_of_many_models_without_units_is_right_and_trains(first: int) -> None:
    found = [tried(seed) for seed in range(first, first + 100)]
    assert mean(result.removable for result in found) > 0.8


def test_seed_gives_the_same_model_every_time() -> None:
    one, other = generate(7), generate(7)
    assert one.source == other.source
    assert all(
        torch.equal(a, b) for a, b in zip(run(one.model, one.inputs), run(other.model, other.inputs), strict=True)
    )
    assert generate(8).source != one.source


def test_every_kind_is_tried() -> None:
    used: set[str] = set()
    for seed in range(FEW):
        used.update(generate(seed).kinds)
    assert used >= KINDS.keys()


def test_failure_shows_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(net: Generated) -> Found:
        raise AssertionError("wrong")

    monkeypatch.setattr("tests.graph.test_generated.try_out", wrong)
    with pytest.raises(AssertionError) as raised:
        tried(3)
    assert "seed 3" in raised.value.__notes__[0]
    assert "class Net(nn.Module):" in raised.value.__notes__[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wrong_units_are_noticed(seed: int) -> None:
    net = generate(seed)
    model, x = net.model.eval(), net.inputs
    coupling = analyze(model, (x,))
    group = max(coupling.groups, key=lambda group: len(group.units))
    plans = [plan_of(model, coupling, [unit]) for unit in group.units[:2]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied(model, optimizer, plans[0], x, run(zeroed(copy.deepcopy(model), plans[0]), x))
    with pytest.raises(AssertionError):
        applied(model, optimizer, plans[0], x, run(zeroed(copy.deepcopy(model), plans[1]), x))
