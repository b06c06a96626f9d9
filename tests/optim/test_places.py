"""Values of kept entries, for any mask, any strides and any dtype, against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur.masks.packing import pack
from secateur.optim.places import move, place_, positions, same_bits, spread, take
from tests.optim.cases import by_path, path

shapes = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def strided(tensor: Tensor, seed: int) -> Tensor:
    """The same values in memory of another order."""
    order = torch.randperm(tensor.dim(), generator=torch.Generator().manual_seed(seed)).tolist()
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def random(shape: Any, density: float, seed: int) -> tuple[Tensor, Tensor]:
    """Values and a mask."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < density


@given(shape=shapes, density=st.floats(0, 1), dtype=dtypes, seed=st.integers(0, 2**31))
def test_kept_entries_are_taken_and_put_back_row_by_row(shape, density, dtype, seed):
    values, mask = random(shape, density, seed)
    tensor, bits = strided(values.to(dtype), seed), pack(mask)
    taken = take(tensor, bits)
    assert torch.equal(taken, tensor[mask])
    made = spread(taken, bits, tensor)
    assert torch.equal(made, torch.where(mask, tensor, torch.zeros_like(tensor)))
    assert made.stride() == torch.empty_like(tensor).stride()
    other = strided(torch.full_like(values, torch.nan).to(dtype), seed)
    assert place_(other, taken, bits) is other
    assert torch.equal(other, made)
    assert not other[~mask].signbit().any()


@by_path
@given(shape=shapes, old=st.floats(0, 1), new=st.floats(0, 1), dtype=dtypes, seed=st.integers(0, 2**31))
def test_values_move_from_one_mask_to_another(is_native, shape, old, new, dtype, seed):
    values, before = random(shape, old, seed)
    after = random(shape, new, seed + 1)[1]
    dense = torch.where(before, values, torch.zeros_like(values)).to(dtype)
    with path(is_native):
        moved = move(dense[before], pack(before), pack(after), dense.numel())
    assert torch.equal(moved, dense[after])


@pytest.mark.parametrize("size", [0, 1, 64, 65])
def test_positions_are_remembered_as_long_as_the_mask_lives(size):
    mask = torch.arange(size) % 3 == 1
    bits = pack(mask)
    assert torch.equal(positions(bits, size), mask.nonzero().squeeze(1))
    assert positions(bits, size) is positions(bits, size)


def test_masks_are_the_same_if_they_keep_the_same_entries():
    mask = torch.arange(70) % 3 == 1
    assert same_bits(pack(mask), pack(mask.clone()))
    assert not same_bits(pack(mask), pack(~mask))
    assert not same_bits(pack(mask), pack(mask[:60]))
