"""Recurrent layers, against the whole layer in which the removed units are dead."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import ShapeError, UnsupportedError, grow_, resize_, transaction

UNITS, PROJECTED, INPUTS = [0, 2, 3, 5], [1, 2], [0, 1, 3]
GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1, nn.LSTMCell: 4, nn.GRUCell: 3, nn.RNNCell: 1}

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": lambda **options: nn.LSTM(4, 6, **options),
    "gru": lambda **options: nn.GRU(4, 6, **options),
    "rnn": lambda **options: nn.RNN(4, 6, **options),
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "two directions": {"bidirectional": True},
    "both": {"num_layers": 2, "bidirectional": True},
    "without bias": {"num_layers": 2, "bias": False},
    "batch first": {"batch_first": True},
}


def blocks(units: list[int], width: int, count: int) -> list[int]:
    """The same units in each of several blocks."""
    return [unit + block * width for block in range(count) for unit in units]


def keeps(layer: nn.RNNBase) -> Iterator[tuple[str, int, list[int]]]:
    """What stays of every tensor when `UNITS` stay (and `PROJECTED` outputs, if there is a projection)."""
    gates, directions = GATES[type(layer)], 2 if layer.bidirectional else 1
    outputs, width = (PROJECTED, layer.proj_size) if layer.proj_size else (UNITS, 6)
    for name, _ in layer.named_parameters():
        is_lowest = "_l0" in name
        if "_hr_" in name:
            yield name, 0, PROJECTED
            yield name, 1, UNITS
            continue
        yield name, 0, blocks(UNITS, 6, gates)
        if "weight_hh" in name:
            yield name, 1, outputs
        elif "weight_ih" in name:
            yield name, 1, INPUTS if is_lowest else blocks(outputs, width, directions)


@torch.no_grad()
def kill(layer: nn.RNNBase) -> None:
    """Make what will be removed dead: its rows and the columns that read it are zero."""
    for name, dim, keep in keeps(layer):
        tensor = layer.get_parameter(name)
        gone = [i for i in range(tensor.shape[dim]) if i not in keep]
        tensor.index_fill_(dim, torch.tensor(gone, dtype=torch.int64), 0.0)


def shrink(layer: nn.RNNBase, optimizer: torch.optim.Optimizer | None = None) -> None:
    with transaction(layer, optimizer) as t:
        for name, dim, keep in keeps(layer):
            t.resize(name, dim=dim, keep=keep)


def small_output(layer: nn.RNNBase, x: Tensor) -> Tensor:
    """The whole layer's output at what stays."""
    directions = 2 if layer.bidirectional else 1
    outputs, width = (PROJECTED, layer.proj_size) if layer.proj_size else (UNITS, 6)
    return layer(x)[0][..., blocks(outputs, width, directions)]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_removing_dead_units_is_exact(kind: str, shape: str) -> None:
    layer = LAYERS[kind](**SHAPES[shape]).double()
    kill(layer)
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    expected = small_output(layer, x)
    identities = [id(p) for p in layer.parameters()]
    shrink(layer)
    assert (layer.input_size, layer.hidden_size) == (3, 4)
    assert [id(p) for p in layer.parameters()] == identities
    torch.testing.assert_close(layer(x[..., INPUTS])[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["plain", "both"])
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_removing_dead_units_under_a_projection_is_exact(shape: str) -> None:
    layer = nn.LSTM(4, 6, proj_size=3, **SHAPES[shape]).double()
    kill(layer)
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    expected = small_output(layer, x)
    shrink(layer)
    assert (layer.input_size, layer.hidden_size, layer.proj_size) == (3, 4, 2)
    torch.testing.assert_close(layer(x[..., INPUTS])[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_training_goes_on_as_if_nothing_had_been_removed(kind: str) -> None:
    layer = LAYERS[kind](num_layers=2, bidirectional=True).double()
    kill(layer)
    small = copy.deepcopy(layer)
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    x[..., [2]] = 0
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.01) for module in (layer, small)]
    shrink(small, optimizers[1])
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        small_output(layer, x).square().mean().backward()
        small(x[..., INPUTS])[0].square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(small(x[..., INPUTS])[0], small_output(layer, x), rtol=1e-12, atol=1e-12)


def test_inputs_alone_can_be_cut() -> None:
    layer = nn.LSTM(4, 6, num_layers=2)
    x = torch.randn(5, 3, 4)
    x[..., [2]] = 0
    expected = layer(x)[0]
    resize_(layer, "weight_ih_l0", dim=1, keep=INPUTS)
    assert (layer.input_size, layer.hidden_size) == (3, 6)
    torch.testing.assert_close(layer(x[..., INPUTS])[0], expected)


def test_inputs_can_grow() -> None:
    layer = nn.GRU(4, 6)
    x = torch.randn(5, 3, 6)
    expected = layer(x[..., :4])[0]
    grow_(layer, "weight_ih_l0", dim=1, size=6)
    assert layer.input_size == 6
    torch.testing.assert_close(layer(x)[0], expected)


def test_units_may_differ_from_layer_to_layer() -> None:
    layer = nn.RNN(4, 6, num_layers=2)
    lower, upper = [0, 1, 2], [3, 4, 5]
    with transaction(layer) as t:
        for index, units in enumerate((lower, upper)):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                t.resize(f"{name}_l{index}", dim=0, keep=units)
            t.resize(f"weight_hh_l{index}", dim=1, keep=units)
        t.resize("weight_ih_l1", dim=1, keep=lower)
    assert layer.hidden_size == 3
    assert layer(torch.randn(5, 3, 4))[0].shape == (5, 3, 3)


def test_weights_in_one_flat_memory_are_no_obstacle() -> None:
    layer = nn.LSTM(4, 6)
    flat = torch.cat([p.detach().flatten() for p in layer.parameters()])
    start = 0
    for parameter in layer.parameters():  # as flatten_parameters() lays them out on a GPU
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    kill(layer)
    x = torch.randn(5, 3, 4)
    expected = small_output(layer, x)
    shrink(layer)
    torch.testing.assert_close(layer(x[..., INPUTS])[0], expected)


@pytest.mark.parametrize(
    ("name", "dim", "keep", "message"),
    [
        ("weight_hh_l0", 0, [0, 1, 2], "4 blocks of rows of 'weight_hh_l0' would keep different units"),
        ("weight_hh_l0", 0, blocks([0, 1], 6, 4), "'weight_ih_l0' would keep other units than weight_hh_l0"),
        ("weight_ih_l0", 0, blocks([0, 1], 6, 4), "'weight_ih_l0' would keep other units than weight_hh_l0"),
        ("weight_hh_l0", 1, [0, 1], "'weight_hh_l0' would keep other units than its output"),
        ("bias_hh_l1", 0, blocks([0, 1], 6, 4), "'bias_hh_l1' would keep other units"),
        ("weight_ih_l1", 1, [0, 1], "'weight_ih_l1' would keep other units than the layer below"),
    ],
)
def test_part_of_a_layer_alone_is_refused(name: str, dim: int, keep: list[int], message: str) -> None:
    layer = nn.LSTM(4, 6, num_layers=2)
    shapes = [p.shape for p in layer.parameters()]
    with pytest.raises(ShapeError, match=message) as caught:
        resize_(layer, name, dim=dim, keep=keep)
    assert "fix:" in str(caught.value)
    assert [p.shape for p in layer.parameters()] == shapes


def test_other_units_in_two_weights_are_refused() -> None:
    layer = nn.RNN(4, 6, bias=False)
    with pytest.raises(ShapeError, match="'weight_ih_l0' would keep other units"):
        _resize(layer, {("weight_ih_l0", 0): [0, 1], ("weight_hh_l0", 0): [0, 2], ("weight_hh_l0", 1): [0, 2]})
    assert layer.weight_hh_l0.shape == (6, 6)


def test_layers_of_different_sizes_are_refused() -> None:
    layer = nn.RNN(4, 6, num_layers=2, bias=False)
    keeps = {("weight_ih_l1", 0): [0, 1], ("weight_hh_l1", 0): [0, 1], ("weight_hh_l1", 1): [0, 1]}
    with pytest.raises(ShapeError, match="every layer and direction needs as many units"):
        _resize(layer, keeps)
    assert layer.weight_hh_l1.shape == (6, 6)


def _resize(module: nn.Module, keeps: dict[tuple[str, int], list[int]]) -> None:
    with transaction(module) as t:
        for (name, dim), keep in keeps.items():
            t.resize(name, dim=dim, keep=keep)


def test_units_do_not_grow_behind_the_blocks() -> None:
    layer = nn.LSTM(4, 6)
    with pytest.raises(UnsupportedError, match="new rows would have to lie inside each of its 4 blocks"):
        grow_(layer, "weight_hh_l0", dim=0, size=28)
    assert layer.weight_hh_l0.shape == (24, 6)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_removing_dead_units_of_a_cell_is_exact(kind: type[nn.RNNCellBase], bias: bool) -> None:
    cell, rows = kind(4, 6, bias=bias), blocks(UNITS, 6, GATES[kind])
    chosen = {("weight_ih", 0): rows, ("weight_ih", 1): INPUTS, ("weight_hh", 0): rows, ("weight_hh", 1): UNITS}
    chosen |= {("bias_ih", 0): rows, ("bias_hh", 0): rows} if bias else {}
    with torch.no_grad():
        for (name, dim), keep in chosen.items():
            tensor = cell.get_parameter(name)
            gone = [i for i in range(tensor.shape[dim]) if i not in keep]
            tensor.index_fill_(dim, torch.tensor(gone), 0.0)
    x = torch.randn(3, 4)

    def run(x: Tensor) -> Tensor:
        out = cell(x)
        return out[0] if isinstance(out, tuple) else out

    expected = run(x)[:, UNITS]
    _resize(cell, chosen)
    assert (cell.input_size, cell.hidden_size) == (3, 4)
    torch.testing.assert_close(run(x[:, INPUTS]), expected)


def test_part_of_a_cell_alone_is_refused() -> None:
    cell = nn.GRUCell(4, 6)
    with pytest.raises(ShapeError, match="'weight_ih' would keep other units than 'weight_hh'"):
        resize_(cell, "weight_ih", dim=0, keep=blocks([0, 1], 6, 3))
    assert cell.weight_ih.shape == (18, 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_units_grow_inside_each_block_through_layers_and_directions(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, num_layers=2, bidirectional=True).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected, _ = layer(x)
    gates = layer.weight_hh_l0.shape[0] // 4
    rows = [gate * 6 + i for gate in range(gates) for i in (4, 5)]
    with transaction(layer) as t:
        for name in dict(layer.named_parameters()):
            t.grow(name, dim=0, size=6 * gates, at=rows, init=nn.init.ones_)
            if name.startswith("weight_hh"):
                t.grow(name, dim=1, size=6)
            elif name.startswith("weight_ih_l1"):
                t.grow(name, dim=1, size=12, at=[4, 5, 10, 11])
    assert layer.hidden_size == 6
    found, _ = layer(x)
    old = [0, 1, 2, 3, 6, 7, 8, 9]
    torch.testing.assert_close(found[..., old], expected, rtol=0, atol=1e-12)


def test_other_new_units_in_each_block_are_refused() -> None:
    layer = nn.RNNCell(3, 4, bias=False)
    before = layer.weight_hh.detach().clone()
    growing = transaction(layer)
    growing.grow("weight_ih", dim=0, size=5, at=[2])
    growing.grow("weight_hh", dim=0, size=5)
    growing.grow("weight_hh", dim=1, size=5)
    with pytest.raises(ShapeError, match="'weight_ih' would keep other units"):
        growing.commit()
    assert torch.equal(layer.weight_hh, before)
