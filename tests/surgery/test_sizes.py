"""Sizes that modules record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from secateur import ShapeError, grow_, resize_, transaction
from secateur.surgery import size_rule
from secateur.surgery.sizes import SIZES, agreed

K4, K3 = [0, 1, 3, 4], [0, 2, 3]

ROWS: dict[str, tuple[Callable[[], nn.Module], dict[tuple[str, int], list[int]], dict[str, Any]]] = {
    "linear": (
        lambda: nn.Linear(5, 6),
        {("weight", 0): K4, ("weight", 1): K3, ("bias", 0): K4},
        {"in_features": 3, "out_features": 4},
    ),
    "linear without bias": (lambda: nn.Linear(5, 6, bias=False), {("weight", 0): K4}, {"out_features": 4}),
    "bilinear": (
        lambda: nn.Bilinear(5, 6, 7),
        {("weight", 0): K4, ("weight", 1): K3, ("weight", 2): [1], ("bias", 0): K4},
        {"in1_features": 3, "in2_features": 1, "out_features": 4},
    ),
    "conv1d": (
        lambda: nn.Conv1d(5, 6, 3),
        {("weight", 0): K4, ("weight", 1): K3, ("bias", 0): K4},
        {"in_channels": 3, "out_channels": 4, "groups": 1},
    ),
    "conv3d": (lambda: nn.Conv3d(5, 6, 1, bias=False), {("weight", 0): K4}, {"in_channels": 5, "out_channels": 4}),
    "transposed": (
        lambda: nn.ConvTranspose2d(5, 6, 3),
        {("weight", 0): K3, ("weight", 1): K4, ("bias", 0): K4},
        {"in_channels": 3, "out_channels": 4, "groups": 1},
    ),
    "batch norm": (lambda: nn.BatchNorm2d(5), {("weight", 0): K3, ("bias", 0): K3}, {"num_features": 3}),
    "layer norm": (lambda: nn.LayerNorm(5), {("weight", 0): K3, ("bias", 0): K3}, {"normalized_shape": (3,)}),
    "layer norm over two dims": (
        lambda: nn.LayerNorm([5, 6], bias=False),
        {("weight", 1): K3},
        {"normalized_shape": (5, 3)},
    ),
    "rms norm": (lambda: nn.RMSNorm(5), {("weight", 0): K3}, {"normalized_shape": (3,)}),
    "prelu": (lambda: nn.PReLU(5), {("weight", 0): K3}, {"num_parameters": 3}),
    "embedding": (
        lambda: nn.Embedding(5, 6),
        {("weight", 0): K3, ("weight", 1): K4},
        {"num_embeddings": 3, "embedding_dim": 4},
    ),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 6), {("weight", 1): K4}, {"num_embeddings": 5, "embedding_dim": 4}),
}


@pytest.mark.parametrize("kind", ROWS)
def test_recorded_sizes_follow(kind: str) -> None:
    make, keeps, expected = ROWS[kind]
    module = make()
    with transaction(module) as t:
        for (name, dim), keep in keeps.items():
            t.resize(name, dim=dim, keep=keep)
    assert {name: getattr(module, name) for name in expected} == expected


def test_every_class_with_a_rule_is_tested() -> None:
    named = [make() for make, *_ in ROWS.values()]
    elsewhere = {nn.GroupNorm, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention}
    twins = {nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose3d}
    ours = {kind for kind in SIZES if kind.__module__.startswith("torch.")} - elsewhere - twins
    assert {kind for kind in ours if not any(isinstance(module, kind) for module in named)} == set()


@pytest.mark.parametrize(
    ("make", "name", "dim", "attribute", "expected"),
    [
        (lambda: nn.Linear(5, 6), "weight", 0, "out_features", 6),
        (lambda: nn.Linear(5, 6), "bias", 0, "out_features", 6),
        (lambda: nn.Conv2d(5, 6, 3), "weight", 0, "out_channels", 6),
        (lambda: nn.BatchNorm1d(5), "weight", 0, "num_features", 5),
        (lambda: nn.LayerNorm(5), "bias", 0, "normalized_shape", (5,)),
    ],
)
def test_size_waits_until_all_tensors_agree(
    make: Callable[[], nn.Module], name: str, dim: int, attribute: str, expected: object
) -> None:
    module = make()
    resize_(module, name, dim=dim, keep=[0, 1])
    assert getattr(module, attribute) == expected
    other = {"weight": "bias", "bias": "weight"}[name]
    resize_(module, other, dim=0, keep=[0, 1])
    assert getattr(module, attribute) in (2, (2,))


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(5, 6), lambda: nn.Conv2d(5, 6, 3), lambda: nn.LayerNorm(6), lambda: nn.GroupNorm(1, 6)],
    ids=["linear", "conv", "layer norm", "group norm"],
)
def test_weight_and_bias_that_keep_different_positions_are_refused(make: Callable[[], nn.Module]) -> None:
    module = make()
    with pytest.raises(ShapeError, match="'weight' and 'bias' of one module keep different positions"):
        _resize(module, {("weight", 0): [0, 1], ("bias", 0): [0, 2]})
    assert module.bias.shape == (6,)
    assert module.weight.shape[0] == 6


def _resize(module: nn.Module, keeps: dict[tuple[str, int], list[int]]) -> None:
    with transaction(module) as t:
        for (name, dim), keep in keeps.items():
            t.resize(name, dim=dim, keep=keep)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_padding_index_moves_with_its_row(kind: type[nn.Embedding]) -> None:
    table = kind(6, 2, padding_idx=4)
    resize_(table, "weight", dim=0, keep=[0, 3, 4, 5])
    assert table.padding_idx == 2
    assert not table.weight[2].any()
    table(torch.tensor([[2, 1]])).sum().backward()
    assert table.weight.grad is not None
    assert not table.weight.grad[2].any()


def test_padding_row_is_not_removed() -> None:
    table = nn.Embedding(6, 2, padding_idx=4)
    with pytest.raises(ShapeError, match="padding row of an embedding cannot be removed"):
        resize_(table, "weight", dim=0, keep=[0, 1])
    assert table.num_embeddings == 6
    assert table.weight.shape == (6, 2)


@pytest.mark.parametrize(("dim", "size", "name"), [(0, 9, "num_embeddings"), (1, 4, "embedding_dim")])
def test_padding_index_stays_when_an_embedding_grows_or_narrows(dim: int, size: int, name: str) -> None:
    table = nn.Embedding(6, 2, padding_idx=4)
    grow_(table, "weight", dim=dim, size=size)
    assert table.padding_idx == 4
    assert getattr(table, name) == size


def test_size_rule_serves_modules_of_users_and_their_subclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width, self.untouched = 4, 4
            self.weight = nn.Parameter(torch.ones(4))

    class Scaled(Scale):
        pass

    monkeypatch.setattr("secateur.surgery.sizes.SIZES", SIZES)
    size_rule(Scale)(lambda module, shapes: {"width": shapes["weight"][0], "untouched": None})
    try:
        module = Scaled()
        resize_(module, "weight", dim=0, keep=[1, 2])
    finally:
        del SIZES[Scale]
    assert (module.width, module.untouched) == (2, 4)


def test_modules_without_a_rule_are_left_alone() -> None:
    holder = nn.ParameterDict({"scale": torch.ones(4)})
    resize_(holder, "scale", dim=0, keep=[1])
    assert holder["scale"].shape == (1,)


@pytest.mark.parametrize(("sizes", "expected"), [((3, 3, None), 3), ((3, 4), None), ((None,), None)])
def test_agreed_size_is_what_all_have_in_common(sizes: tuple[int | None, ...], expected: int | None) -> None:
    assert agreed(*sizes) == expected


def test_padding_index_moves_on_when_rows_grow_before_it() -> None:
    table = nn.Embedding(4, 2, padding_idx=2)
    grow_(table, "weight", dim=0, size=6, at=[0, 5])
    assert (table.num_embeddings, table.padding_idx) == (6, 3)
    assert not bool(table.weight[3].any())
