from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur.masks.bits import Bits
from tests.masks.oracles import bits as memory
from tests.masks.oracles import half, is_zero

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


def dirty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers without a zero, with some inf and nan."""
    tensor = torch.randn(shape).to(dtype) + 3
    tensor.view(-1)[::7] = torch.nan
    tensor.view(-1)[1::7] = -torch.inf
    return tensor


def expected(tensor: Tensor, mask: Tensor) -> Tensor:
    """What clearing should give, entry by entry."""
    return torch.where(mask, tensor, torch.zeros_like(tensor))


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (64, 3), (4, 3, 2, 2), (9,), (0, 3)], ids=str)
def test_bits_clear_what_is_masked_and_no_other_bit(shape: tuple[int, ...], dtype: torch.dtype, lean: bool) -> None:
    tensor, mask = dirty(shape, dtype), half(shape)
    wanted = expected(tensor, mask)
    Bits.of(mask, tensor, lean=lean).clear_(tensor, own=True)
    assert memory(tensor) == memory(wanted)
    assert is_zero(tensor[~mask])


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_bits_clear_tensors_of_any_memory_order(dtype: torch.dtype, lean: bool) -> None:
    mask = half((4, 3, 5, 2))
    for tensor in (
        dirty((4, 3, 5, 2), dtype).to(memory_format=torch.channels_last),
        dirty((2, 5, 3, 4), dtype).permute(3, 2, 1, 0),
        dirty((8, 3, 5, 2), dtype)[::2],
    ):
        wanted = expected(tensor, mask)
        bits = Bits.of(mask, tensor, lean=lean)
        for own in (True, False):
            changed = tensor.clone(memory_format=torch.preserve_format)
            bits.clear_(changed, own=own)
            assert memory(changed) == memory(wanted)


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
)
def test_lean_bits_do_the_same(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
    mask, one = half(shape, seed), dirty(shape, dtype)
    other = one.clone()
    Bits.of(mask, one).clear_(one)
    Bits.of(mask, other, lean=True).clear_(other)
    assert memory(one) == memory(other)


@pytest.mark.parametrize("order", ["as the mask's own", "transposed", "channels last"])
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_fill_or_clear_one_side_and_leave_every_bit_of_the_other(
    dtype: torch.dtype, lean: bool, order: str
) -> None:
    own, mask = dirty((6, 300, 20, 20), dtype), half((6, 300, 20, 20))
    bits = Bits.of(mask, own, lean=lean)
    if order == "transposed":
        own = own.transpose(0, 1).contiguous().transpose(0, 1)
    elif order == "channels last":
        own = own.contiguous(memory_format=torch.channels_last)
    filled, cleared = own.clone(), own.clone()
    bits.fill_(filled, complex(1, 1) if dtype.is_complex else 1.0)
    bits.clear_kept_(cleared)
    one = torch.full_like(own, complex(1, 1) if dtype.is_complex else 1.0)
    assert memory(filled) == memory(torch.where(mask, own, one))
    assert memory(cleared) == memory(expected(own, ~mask))


@pytest.mark.parametrize("coalesced", [True, False])
def test_bits_clear_a_sparse_tensor_in_place(coalesced: bool) -> None:
    mask = half((6, 3))
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, torch.nan, 6.0], [7.0, 8.0, 9.0]])
    tensor = torch.sparse_coo_tensor(torch.tensor([[1, 4, 1]]), values, (6, 3), check_invariants=True)
    tensor = tensor.coalesce() if coalesced else tensor
    wanted = expected(tensor.to_dense(), mask)
    Bits.of(mask, torch.zeros(6, 3)).clear_(tensor)
    assert tensor.layout == torch.sparse_coo
    assert memory(tensor) == memory(wanted)


@pytest.mark.parametrize("lean", [False, True])
def test_bits_leave_meta_tensors_alone_and_stay_where_they_are(lean: bool) -> None:
    mask = half((6, 3))
    bits = Bits.of(mask, torch.zeros(6, 3, device="meta"), lean=lean)
    bits.clear_(torch.zeros(6, 3, device="meta"), own=True)
    assert torch.equal(bits.dense, mask)


def test_bits_hold_an_eighth_of_a_byte_an_entry_when_lean() -> None:
    weight = torch.randn(64, 64)
    lean, fast = (Bits.of(half((64, 64)), weight, lean=lean) for lean in (True, False))
    for bits in (lean, fast):
        bits.clear_(weight, own=True)
    assert lean.num_bytes == 64 * 64 // 8
    assert fast.num_bytes == 64 * 64 // 8 + 4 * 64 * 64


def test_bits_make_words_anew_when_their_tensor_changes_its_dtype() -> None:
    mask, weight = half((8, 8)), torch.randn(8, 8)
    bits = Bits.of(mask, weight)
    weight.data = weight.double()
    bits.clear_(weight, own=True)
    assert bits.num_bytes == 8 + 8 * 64
    assert is_zero(weight[~mask])


def test_bits_keep_no_words_for_tensors_that_are_not_their_own() -> None:
    bits = Bits.of(half((8, 8)), torch.randn(8, 8))
    before = bits.num_bytes
    bits.clear_(torch.randn(8, 8).double())
    assert bits.num_bytes == before


def test_copy_of_bits_shares_no_memory() -> None:
    bits = Bits.of(half((8, 8)), torch.randn(8, 8))
    copied = bits.copy()
    copied.packed.zero_()
    assert torch.equal(bits.dense, half((8, 8)))
    assert not copied.lean
    assert bits.copy(lean=True).lean


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_window_is_clear_until_a_masked_entry_in_it_is_not_zero(dtype: torch.dtype, lean: bool) -> None:
    mask, weight = half((20, 30)), dirty((20, 30), dtype)
    bits = Bits.of(mask, weight, lean=lean)
    bits.clear_(weight, own=True)
    windows = [(start, start + 128) for start in range(0, 600, 128)]
    assert all(bits.is_clear(*window, weight) for window in windows)
    for position in (~mask).flatten().nonzero().flatten().tolist()[::11]:
        for value in (-0.0, torch.nan, 1e-30):
            changed = weight.clone()
            changed.view(-1)[position] = value
            found = [bits.is_clear(*window, changed) for window in windows]
            if dtype == torch.complex128 and value == 0.0 and memory(changed) == memory(weight):
                continue  # complex(-0.0) has lost its sign
            assert found == [not start <= position < stop for start, stop in windows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_window_of_two_tensors_is_clear_when_both_are(dtype: torch.dtype) -> None:
    mask, weight, gradient = half((20, 30)), dirty((20, 30), dtype), dirty((20, 30), dtype)
    bits = Bits.of(mask, weight)
    assert not bits.is_clear(64, 128, weight, gradient)
    bits.clear_(weight)
    assert not bits.is_clear(64, 128, weight, gradient)
    assert not bits.is_clear(64, 128, gradient, weight)
    bits.clear_(gradient)
    assert bits.is_clear(64, 128, weight, gradient)


def test_windows_of_a_channels_last_tensor_cover_it() -> None:
    mask = half((4, 6, 3, 5))
    weight = dirty((4, 6, 3, 5)).to(memory_format=torch.channels_last)
    bits = Bits.of(mask, weight)
    bits.clear_(weight, own=True)
    assert bits.is_flat(weight)
    assert not Bits.of(mask, weight, lean=True).is_flat(weight)
    windows = [(start, start + 64) for start in range(0, 360, 64)]
    for index in (~mask).nonzero().tolist()[::17]:
        changed = weight.clone(memory_format=torch.preserve_format)
        changed[tuple(index)] = 1.0
        assert [bits.is_clear(*window, changed) for window in windows].count(False) == 1


def test_other_layouts_are_not_flat() -> None:
    mask = half((4, 6))
    bits = Bits.of(mask, torch.zeros(4, 6))
    assert not bits.is_flat(torch.zeros(6, 4).t())
    assert not bits.is_flat(torch.zeros(4, 6).to_sparse())
