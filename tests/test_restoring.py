"""What a forward keeps in its module is gone after a trace, and made anew with the sizes of the smaller model."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from secateur import shrink_
from secateur._restoring import attributes_restored
from secateur.graph import analyze
from secateur.graph.provenance import Size
from secateur.shrink import plan_shrink
from tests.shrink.models import equals_the_zeroed_model, randomized


class Caching(nn.Module):
    """A model that keeps what it has computed in its first run, in every place that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)
        self.width, self.calls, self.seen, self.masks, self.store = None, 0, [7], {}, SimpleNamespace(last=None)
        self.register_buffer("scale", None)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        self.calls += 1
        self.seen.append(h.shape)
        self.store.last = h.detach()
        if self.width is None:
            self.width = h.shape[-1]
            self.ones = h.new_ones(self.width)
            self.scale = 2 * self.ones
        if "mask" not in self.masks:
            self.masks["mask"] = torch.ones(self.width, dtype=torch.bool)
        return self.b((h.view(-1, self.width) * self.ones * self.scale).masked_fill(~self.masks["mask"], 0.0))


def stored(model: nn.Module) -> list[tuple[str, object]]:
    return [(name, copy.copy(value)) for name, value in vars(model).items() if not name.startswith("_")]


def test_analysis_leaves_no_cache_and_no_size_behind() -> None:
    model = Caching()
    before = stored(model)
    analyze(model, torch.ones(2, 3))
    assert stored(model) == before
    assert (model.scale, vars(model.store), model.masks, model.seen) == (None, {"last": None}, {}, [7])
    assert not any(isinstance(value, Size) for value in vars(model).values())


def test_a_model_that_caches_its_width_runs_after_it_was_made_smaller() -> None:
    model, x = randomized(Caching()), torch.randn(2, 3, dtype=torch.float64)
    plan = plan_shrink(copy.deepcopy(model), x, sparsity=0.5)
    before = copy.deepcopy(model)
    shrink_(model, x, sparsity=0.5)
    reference = plan.removed_zeroed_(before)
    torch.testing.assert_close(model(x), reference(x), rtol=0, atol=1e-12)
    assert (type(model.width), model.width) == (int, model.a.out_features)
    assert model.a.out_features < 6


def test_what_was_cached_before_is_the_same_object_afterwards() -> None:
    model = Caching()
    model(torch.ones(2, 3))
    objects = {name: id(value) for name, value in vars(model).items()}
    entries = [*map(id, model.seen), *map(id, model.masks.values()), id(model.store.last), id(model.scale)]
    analyze(model, torch.ones(2, 3))
    assert {name: id(value) for name, value in vars(model).items()} == objects
    assert [*map(id, model.seen), *map(id, model.masks.values()), id(model.store.last), id(model.scale)] == entries


def test_attributes_are_put_back_when_the_block_raises() -> None:
    model = nn.Linear(2, 2)
    model.notes = {"a": [1]}

    def fail() -> None:
        with attributes_restored(model):
            model.notes["b"], model.extra = 2, nn.Linear(1, 1)
            model.register_buffer("more", torch.ones(1))
            del model.out_features
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert (model.notes, model.out_features, hasattr(model, "extra"), hasattr(model, "more")) == (
        {"a": [1]},
        2,
        False,
        False,
    )


def test_a_width_that_was_cached_as_a_number_follows() -> None:
    model, x = randomized(Caching()), torch.randn(2, 3, dtype=torch.float64)
    model.width, model.ones, model.scale = 6, torch.tensor(1.0), torch.tensor(2.0)
    model.masks["mask"] = torch.tensor(True)
    smaller = equals_the_zeroed_model(model, plan_shrink(model, x, sparsity=0.5), x)
    assert smaller.width == smaller.a.out_features


def test_a_weight_that_each_run_computes_anew_stays_computed_without_a_graph() -> None:
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Linear(3, 4))
    model(torch.ones(2, 3))
    assert not model.weight.is_leaf
    analyze(model, torch.ones(2, 3))
    assert torch.equal(copy.deepcopy(model).weight, model.weight)
