"""What each layer holds and costs, against the layers of the model that was really made smaller."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import secateur
from secateur import InvalidInputError, ShrinkPlan
from secateur.report.layers import BETWEEN, layers_of
from secateur.shrink import LatencyTable, TimeGrid
from tests.shrink import growable

COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


def owned(model: nn.Module) -> dict[str, int]:
    """Number of parameters by the module that owns them, tied ones once."""
    found: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        found[name.rpartition(".")[0] or name] += parameter.numel()
    return dict(found)


def counted(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Multiply-accumulate operations of the layers that torch counts, by their names."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    found = counter.get_flop_counts()
    root = type(model).__name__
    names = (name for name, module in model.named_modules() if isinstance(module, COUNTED))
    totals = {name: sum(found.get(f"{root}.{name}", {}).values()) // 2 for name in names}
    tied = {name for name, module in model.named_modules() if name and owner_of(model, module) != name}
    return {name: macs for name, macs in totals.items() if macs and name not in tied}


def owner_of(model: nn.Module, module: nn.Module) -> str:
    """The module under whose name the weight of a module stands first."""
    weight = getattr(module, "weight", None)
    first = (name for name, parameter in model.named_parameters() if parameter is weight)
    return next(first, "").rpartition(".")[0]


def planned(name: str) -> tuple[nn.Module, Tensor, ShrinkPlan]:
    model, x = growable.built(name)
    model.eval()
    return model, x, secateur.plan_shrink(model, x, sparsity=0.4, min_units=1)


@pytest.mark.parametrize("name", growable.MODELS)
def test_layers_are_those_of_the_model_and_of_the_smaller_one(name: str) -> None:
    model, x, plan = planned(name)
    smaller = plan.apply_(copy.deepcopy(model))
    layers = {layer.name: layer for layer in layers_of(plan)}
    for side, one in enumerate((model, smaller)):
        held = {own: layer.parameters[side] for own, layer in layers.items() if layer.parameters is not None}
        assert {own: number for own, number in held.items() if number} == owned(one)
        costs = {own: layer.macs[side] for own, layer in layers.items() if layer.macs is not None}
        expected = counted(one, x)
        assert {own: costs[own] for own in expected} == expected
        assert (sum(held.values()), sum(costs.values())) == (plan.parameters[side], plan.macs[side])


@pytest.mark.parametrize("name", ["cnn", "multihead"])
def test_shapes_are_those_of_the_largest_tensor(name: str) -> None:
    model, _, plan = planned(name)
    smaller = plan.apply_(copy.deepcopy(model))
    for layer in layers_of(plan):
        if layer.name == BETWEEN:
            continue
        for side, one in enumerate((model, smaller)):
            shapes = [tuple(t.shape) for n, t in one.state_dict().items() if n.rpartition(".")[0] == layer.name]
            assert layer.shapes[side] in shapes
            assert len(layer.shapes[side]) == max(map(len, shapes))


def test_products_of_activations_belong_to_no_layer() -> None:
    _, x, plan = planned("heads")
    batch, tokens, width = x.shape
    between = next(layer for layer in layers_of(plan) if layer.name == BETWEEN)
    assert between.macs is not None
    assert between.macs[0] == 2 * batch * tokens * tokens * width
    assert between.parameters is None


class Tokens(nn.Module):
    """A table of tokens that is named after the layer that reads from it, with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm, self.embed = nn.Linear(6, 10), nn.LayerNorm(6), nn.Embedding(10, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.embed(tokens)))
        return found


def test_a_product_belongs_to_its_weight_and_not_to_a_table_of_tokens() -> None:
    model = Tokens().eval()
    plan = secateur.plan_shrink(model, torch.arange(5)[None], sparsity=0.5)
    assert {layer.name: layer.macs for layer in layers_of(plan) if layer.macs} == {"head": (5 * 6 * 10, 5 * 3 * 10)}


class Mixing(nn.Module):
    """Attention of tokens to themselves, all of which is computed from parameters and indices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.k, self.o = nn.Embedding(10, 6), nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k = (part(x).view(*tokens.shape, 2, 2).transpose(1, 2) for part in (self.q, self.k))
        mixed = (q @ k.transpose(-1, -2)) @ k
        found: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return found


def test_parts_of_one_weight_belong_to_it_and_not_to_a_table_of_tokens() -> None:
    parts = {"embed": nn.Embedding(10, 6), "layer": nn.MultiheadAttention(6, 2, batch_first=True)}
    model = growable.Called(lambda self, x: self.layer(*[self.embed(x)] * 3, need_weights=False)[0], **parts).eval()
    plan = secateur.plan_shrink(model, torch.arange(5)[None], sparsity=0.0)
    macs = {layer.name: layer.macs[0] for layer in layers_of(plan) if layer.macs}
    assert macs["layer"] == 5 * 6 * 18
    assert "embed" not in macs


def test_attention_over_a_table_of_tokens_belongs_to_no_layer() -> None:
    plan = secateur.plan_shrink(Mixing().eval(), torch.arange(5)[None], sparsity=0.0)
    macs = {layer.name: layer.macs[0] for layer in layers_of(plan) if layer.macs}
    assert macs == {"q": 5 * 6 * 4, "k": 5 * 6 * 4, BETWEEN: 2 * 5 * 5 * 4, "o": 5 * 4 * 2}


def test_a_tied_weight_counts_where_it_is_named_first() -> None:
    model, _, plan = planned("tied")
    layers = {layer.name: layer for layer in layers_of(plan)}
    assert "head" not in layers
    assert layers["embed"].parameters is not None
    assert layers["embed"].parameters[0] == model.embed.weight.numel()


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_plan_from_a_file_knows_the_layers_of_a_model_before_and_after(is_applied: bool, tmp_path: Path) -> None:
    model, _, plan = planned("cnn")
    smaller = plan.apply_(copy.deepcopy(model))
    plan.save(tmp_path / "plan")
    loaded = ShrinkPlan.load(tmp_path / "plan")
    layers = layers_of(loaded, smaller if is_applied else model)
    for side, one in enumerate((model, smaller)):
        assert {layer.name: layer.parameters[side] for layer in layers if layer.parameters} == owned(one)
    assert [layer.macs for layer in layers] == [None] * len(layers)
    assert [layer.shapes for layer in layers] == [layer.shapes for layer in layers_of(plan)]


def test_a_plan_from_a_file_alone_knows_what_changes(tmp_path: Path) -> None:
    _, _, plan = planned("cnn")
    plan.save(tmp_path / "plan")
    layers = layers_of(ShrinkPlan.load(tmp_path / "plan"))
    assert {layer.name for layer in layers} == {name.rpartition(".")[0] for name in plan.keep}
    assert {layer.parameters for layer in layers} == {None}
    known = {layer.name: layer.shapes for layer in layers_of(plan)}
    assert all(layer.shapes == known[layer.name] for layer in layers)


def test_a_plan_to_grow_adds_positions() -> None:
    model, x = growable.built("cnn")
    plan = secateur.shrink.plan_grow(model, x, add={"stem": 3})
    larger = plan.apply_(copy.deepcopy(model))
    layers = layers_of(plan, model)
    assert {layer.name: layer.parameters[1] for layer in layers if layer.parameters} == owned(larger)


def test_seconds_are_those_of_the_table() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    grids = (
        TimeGrid("matmul", ((1,), (2,), (4,), (1, 8)), (1.0, 8.0)),
        TimeGrid("matmul", ((1,), (2,), (1, 8), (2,)), (2.0, 16.0)),
    )
    plan = secateur.plan_shrink(model, torch.randn(2, 4), sparsity=0.5)
    seconds = {layer.name: layer.seconds for layer in layers_of(plan, table=LatencyTable(grids))}
    assert seconds == {"0": (8.0, 4.0), "2": (16.0, 8.0)}


def test_a_table_that_lacks_a_product_is_refused() -> None:
    plan = secateur.plan_shrink(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(2, 4), sparsity=0.5)
    with pytest.raises(InvalidInputError, match="does not cover a matmul"):
        layers_of(plan, table=LatencyTable(()))
