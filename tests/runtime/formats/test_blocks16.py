"""The format of 16 x 1 blocks: what fits it, what it keeps, what it gives back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur.patterns import Block
from secateur.runtime.formats.blocks16 import BLOCKS_16
from tests.native.products import SIZES, check

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def blocked(outputs: int, inputs: int, density: float) -> tuple[Tensor, Tensor]:
    """A weight of whole blocks, and where they are."""
    kept = (torch.rand(-(-outputs // 16), inputs) < density).repeat_interleave(16, 0)[:outputs]
    return torch.where(kept, torch.randn(outputs, inputs), 0.0), kept


@given(
    outputs=SIZES, inputs=SIZES, density=st.sampled_from([0.0, 0.1, 0.5, 1.0]), dtype=DTYPES, seed=st.integers(0, 99)
)
def test_packing_loses_nothing_but_the_rounding_of_the_values(outputs, inputs, density, dtype, seed):
    torch.manual_seed(seed)
    weight, _ = blocked(outputs, inputs, density)
    parts = BLOCKS_16.pack(weight, dtype)
    assert parts[0].dtype == dtype
    assert all(part.is_contiguous() for part in parts)
    assert torch.equal(BLOCKS_16.unpack(parts, weight.shape), weight.to(dtype).float())


@given(
    outputs=SIZES, inputs=SIZES, batch=st.integers(0, 40), dtype=DTYPES, biased=st.booleans(), seed=st.integers(0, 99)
)
def test_the_product_is_that_of_the_weight_it_gives_back(outputs, inputs, batch, dtype, biased, seed):
    torch.manual_seed(seed)
    weight, kept = blocked(outputs, inputs, 0.2)
    x, bias = torch.randn(batch, inputs), torch.randn(outputs) if biased else None
    parts = BLOCKS_16.pack(weight, dtype)
    given = BLOCKS_16.unpack(parts, weight.shape)
    for relu in (False, True):
        check(BLOCKS_16.bind(parts, weight.shape, bias, relu)(x), x, given, kept, bias, relu)


@pytest.mark.parametrize("inputs", [65536, 65537])
def test_the_last_of_very_many_columns_is_kept(inputs):
    weight, _ = blocked(16, inputs, 0.001)
    weight[:, -1] = torch.arange(1.0, 17.0)
    parts = BLOCKS_16.pack(weight, torch.float32)
    assert torch.equal(BLOCKS_16.unpack(parts, weight.shape), weight)
    x = torch.zeros(3, inputs)
    x[:, -1] = 2.0
    assert torch.equal(BLOCKS_16.bind(parts, weight.shape, None, False)(x), 2.0 * weight[:, -1].expand(3, 16))


@pytest.mark.parametrize("outputs", [64, 70])
def test_masks_of_the_block_pattern_fit(outputs):
    blocks = torch.rand(-(-outputs // 16) * 50) < 0.1
    weight = torch.randn(outputs, 50) * Block((16, 1)).expand(blocks, torch.Size((outputs, 50)))
    assert BLOCKS_16.misfit(weight) == ""
    assert len(BLOCKS_16.pack(weight, torch.float32)[0]) == int(blocks.sum())


def test_what_is_not_in_blocks_does_not_fit_and_the_reason_has_numbers():
    weight = torch.zeros(32, 4)
    weight[0, 0] = weight[1, 1] = weight[20, 2] = 1.0
    assert BLOCKS_16.misfit(weight) == "its zeros are not in blocks of 16 outputs: 3 of 48 stored values were not zero"
    weight[:8, 0] = weight[:8, 1] = weight[20:28, 2] = 1.0
    assert BLOCKS_16.misfit(weight) == ""
    assert BLOCKS_16.misfit(torch.zeros(32, 4)) == ""


def test_a_transposed_weight_and_parameters_are_packed_as_they_read():
    layer = nn.Linear(30, 32)
    turned = layer.weight.detach().t().contiguous().t()
    parts = BLOCKS_16.pack(layer.weight, torch.float32)
    assert all(map(torch.equal, parts, BLOCKS_16.pack(turned, torch.float32)))
    y = BLOCKS_16.bind(parts, layer.weight.shape, layer.bias, False)(torch.randn(2, 30))
    assert not y.requires_grad
