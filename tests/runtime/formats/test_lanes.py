"""The format for few rows: what it keeps, how its lanes are filled, what it gives back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur.runtime.formats.lanes import LANES
from tests.native.products import SIZES, check, random_weight

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


@given(
    outputs=SIZES, inputs=SIZES, density=st.sampled_from([0.0, 0.1, 0.5, 1.0]), dtype=DTYPES, seed=st.integers(0, 99)
)
def test_packing_loses_nothing_but_the_rounding_of_the_values(outputs, inputs, density, dtype, seed):
    torch.manual_seed(seed)
    weight = random_weight(outputs, inputs, density)
    parts = LANES.pack(weight, dtype)
    assert parts[0].dtype == dtype
    assert all(part.is_contiguous() for part in parts)
    assert LANES.misfit(weight) == ""
    assert torch.equal(LANES.unpack(parts, weight.shape), weight.to(dtype).float())


@given(
    outputs=SIZES, inputs=SIZES, batch=st.integers(0, 9), dtype=DTYPES, biased=st.booleans(), seed=st.integers(0, 99)
)
def test_the_product_is_that_of_the_weight_it_gives_back(outputs, inputs, batch, dtype, biased, seed):
    torch.manual_seed(seed)
    weight, x = random_weight(outputs, inputs, 0.2), torch.randn(batch, inputs)
    bias = torch.randn(outputs) if biased else None
    parts = LANES.pack(weight, dtype)
    kept = LANES.unpack(parts, weight.shape)
    for relu in (False, True):
        check(LANES.bind(parts, weight.shape, bias, relu)(x), x, kept, kept != 0, bias, relu)


def test_a_weight_that_rounds_to_zero_is_not_kept():
    weight = torch.tensor([[1e-41, 0.0, 2.0]])
    parts = LANES.pack(weight, torch.bfloat16)
    assert torch.equal(LANES.unpack(parts, weight.shape), torch.tensor([[0.0, 0.0, 2.0]]))
    x = torch.tensor([[float("inf"), float("nan"), 3.0]])
    assert LANES.bind(parts, weight.shape, None, False)(x).item() == 6.0


def test_a_transposed_weight_and_parameters_are_packed_as_they_read():
    layer = nn.Linear(30, 32)
    turned = layer.weight.detach().t().contiguous().t()
    parts = LANES.pack(layer.weight, torch.float32)
    assert all(map(torch.equal, parts, LANES.pack(turned, torch.float32)))
    y = LANES.bind(parts, layer.weight.shape, layer.bias, False)(torch.randn(2, 30))
    assert not y.requires_grad


def test_outputs_with_as_many_weights_share_their_lanes():
    weight = torch.zeros(64, 256)
    weight[::2] = 1.0  # else each group would have half its slots empty
    values = LANES.pack(weight, torch.float32)[0]
    assert values.numel() == int(weight.sum())


@pytest.mark.parametrize(("sparsity", "filled"), [(0.5, 0.95), (0.8, 0.85), (0.9, 0.75)])
def test_few_slots_stay_empty_with_random_masks(sparsity, filled):
    weight = torch.randn(256, 1024) * (torch.rand(256, 1024) >= sparsity)
    values = LANES.pack(weight, torch.float32)[0]
    assert (values != 0).float().mean() >= filled
