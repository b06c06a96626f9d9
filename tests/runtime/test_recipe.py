"""What becomes what: through text and back, and the parts of a model that are put in others' places."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.runtime.chain import Chain
from secateur.runtime.formats import Geometry
from secateur.runtime.recipe import Recipe, geometry_of, held, inside, layer_weight, open_, pack_, packed_layer

RECIPE = Recipe({"0": "1"}, {"att": True}, {"0": "csr", "2": "grouped"}, {"0": "3"}, "bfloat16")


def test_recipe_goes_through_json() -> None:
    assert Recipe.from_json(json.loads(json.dumps(RECIPE.to_json()))) == RECIPE
    assert Recipe.from_json(json.loads(json.dumps(Recipe().to_json()))) == Recipe()


@pytest.mark.parametrize(
    "change",
    [{"values": "float64"}, {"values": 3}, {"norms": {"0": 1}}, {"attentions": {"a": "b"}}, {"layers": {"0": None}}],
    ids=str,
)
def test_damaged_recipe_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="recipe of a compressed model is damaged"):
        Recipe.from_json({**RECIPE.to_json(), **change})


@pytest.mark.parametrize(
    ("layer", "geometry"),
    [
        (nn.Conv2d(1, 1, 3), Geometry()),
        (nn.Conv2d(1, 1, 3, 2, 1, 3), Geometry((2, 2), (1, 1), (3, 3))),
        (nn.Conv2d(1, 1, (3, 5), (1, 2), (0, 4), (2, 1)), Geometry((1, 2), (0, 4), (2, 1))),
        (nn.Conv2d(1, 1, (3, 5), padding="same", dilation=(2, 1)), Geometry((1, 1), (2, 2), (2, 1))),
        (nn.Conv2d(1, 1, 3, padding="valid"), Geometry()),
    ],
    ids=["default", "square", "oblong", "same", "valid"],
)
def test_geometry_is_in_numbers(layer: nn.Conv2d, geometry: Geometry) -> None:
    assert geometry_of(layer) == geometry


def test_weight_is_float32_and_contiguous() -> None:
    layer = nn.Conv2d(2, 3, 3).to(torch.float16, memory_format=torch.channels_last)
    weight = layer_weight(layer)
    assert weight.dtype == torch.float32
    assert weight.is_contiguous()
    assert torch.equal(weight, layer.weight.float())


def test_packed_layer_shares_no_memory_with_the_dense_one() -> None:
    layer = nn.Linear(6, 4)
    packed = packed_layer(layer, "torch csr", torch.float32, relu=False)
    x = torch.randn(2, 6)
    with torch.no_grad():
        y = packed(x)
        layer.weight.zero_()
        layer.bias.zero_()
    assert torch.equal(packed(x), y)


def test_root_can_be_packed_and_opened() -> None:
    holder = held(nn.Linear(6, 4))
    pack_(holder, Recipe(layers={"": "torch csr"}))
    assert type(inside(holder)).__name__ == "SparseLinear"
    holder = held(nn.MultiheadAttention(8, 2))
    open_(holder, Recipe(attentions={"": True}))
    assert type(inside(holder)).__name__ == "OpenAttention"


def test_encoders_leave_the_fused_path_only_where_a_part_is_packed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    holder = held(nn.Sequential(nn.TransformerEncoder(layer, 1), nn.TransformerEncoder(layer, 1)))
    pack_(holder, Recipe(layers={"0.layers.0.linear1": "torch csr"}))
    packed, other = inside(holder)
    assert (packed.use_nested_tensor, packed.layers[0].activation_relu_or_gelu) == (False, 0)
    assert (other.use_nested_tensor, other.layers[0].activation_relu_or_gelu) == (True, 1)


def test_places_where_nothing_is_left_are_passed_over() -> None:
    called: list[str] = []

    class Empty(nn.Identity):
        def forward(self, x: Tensor) -> Tensor:
            called.append("own")
            return x

    chain = nn.Sequential(nn.Linear(3, 4), nn.Identity(), Empty(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    expected = chain(x)
    chain.__class__ = Chain
    with patch.object(nn.Identity, "forward", None):  # not called
        assert torch.equal(chain(x), expected)
    assert called == ["own", "own"]
