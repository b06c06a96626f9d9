from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import secateur._native as native
from secateur import ShapeError
from secateur.masks.bits import Bits, clear_all_
from secateur.masks.packing import pack
from tests.masks.oracles import bits as memory
from tests.masks.oracles import half, is_zero

pytestmark = pytest.mark.usefixtures("by")

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


@pytest.mark.parametrize("lean", [False, True])
def test_bits_hold_an_eighth_of_a_byte_an_entry_with_kernels_or_when_lean(by: str, lean: bool) -> None:
    weights = [torch.randn(4, 16, 8, 8)]
    if by == "kernels":
        weights += [weights[0].to(memory_format=torch.channels_last), weights[0].transpose(0, 2)]
    for weight in weights:
        bits = Bits.of(half(weight.shape), weight, lean=lean)
        bits.clear_(weight, own=True)
        assert bits.num_bytes == weight.numel() // 8 + (4 * weight.numel() if by == "torch" and not lean else 0)


def test_bits_hold_words_of_a_tensor_that_kernels_cannot_take() -> None:
    weight = dirty((16, 16))[:, ::2]
    mask, wanted = half((16, 8)), expected(weight, half((16, 8)))
    bits = Bits.of(mask, weight)
    bits.clear_(weight, own=True)
    assert memory(weight) == memory(wanted)
    assert bits.num_bytes == 128 // 8 + 4 * 128


def test_bits_drop_words_when_kernels_can_take_their_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    mask, weight = half((8, 8)), dirty((8, 8))
    with monkeypatch.context() as hidden:
        hidden.setattr(native, "library", lambda: None)
        bits = Bits.of(mask, weight)
    assert bits.num_bytes == 8 + 4 * 64
    bits.clear_(weight, own=True)
    assert bits.num_bytes == (8 if native.library() else 8 + 4 * 64)
    assert is_zero(weight[~mask])


def test_bits_make_words_anew_when_their_tensor_changes_its_dtype(by: str) -> None:
    mask, weight = half((8, 8)), torch.randn(8, 8)
    bits = Bits.of(mask, weight)
    weight.data = weight.double()
    bits.clear_(weight, own=True)
    assert bits.num_bytes == (8 if by == "kernels" else 8 + 8 * 64)
    assert is_zero(weight[~mask])


@pytest.mark.parametrize("order", ["row-major", "channels last", "transposed"])
def test_bits_are_the_same_in_every_memory_order(order: str) -> None:
    weight, mask = dirty((4, 6, 3, 5)), half((4, 6, 3, 5))
    if order == "channels last":
        weight = weight.to(memory_format=torch.channels_last)
    elif order == "transposed":
        weight = weight.transpose(0, 3).contiguous().transpose(0, 3)
    bits = Bits.of(mask, weight)
    bits.clear_(weight, own=True)
    for each in (bits, bits.copy()):
        assert torch.equal(each.dense, mask)
        assert each.dense.is_contiguous()
        assert torch.equal(each.packed, pack(mask))
        assert each.num_zeros == int((~mask).sum())


def test_tensor_of_another_shape_is_refused_though_its_strides_fit() -> None:
    bits, other = Bits.of(half((30, 8)), torch.zeros(30, 8)), torch.zeros(31, 8)
    with pytest.raises(ShapeError, match=r"another shape|do not fit the tensor"):
        bits.clear_(other)


def test_bits_that_are_too_few_are_refused() -> None:
    with pytest.raises(ShapeError, match="do not fit the mask"):
        Bits(torch.zeros(8, dtype=torch.uint8), torch.Size([13, 5]))


def test_bits_without_memory_are_not_given_to_kernels() -> None:
    with FakeTensorMode():
        bits = Bits.of(torch.zeros(6, 4, dtype=torch.bool), torch.zeros(6, 4))
    assert bits._reach(torch.zeros(6, 4), keep=True) is None


def test_clearing_raises_the_version_that_autograd_looks_at() -> None:
    weight = torch.randn(6, 4, requires_grad=True)
    bits, loss = Bits.of(half((6, 4)), weight), (weight * weight).sum()
    bits.clear_(weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_many_tensors_are_cleared_like_one() -> None:
    weights = [dirty((300, 7)), dirty((5,)), dirty((16, 16))[:, ::2], dirty((0, 3)), dirty((9, 9), torch.bfloat16)]
    masks = [half(weight.shape, seed) for seed, weight in enumerate(weights)]
    wanted = [expected(weight, mask) for weight, mask in zip(weights, masks, strict=True)]
    pairs = [(Bits.of(mask, weight), weight) for mask, weight in zip(masks, weights, strict=True)]
    before = [weight._version for weight in weights]
    clear_all_(pairs)
    assert [memory(weight) for weight in weights] == [memory(each) for each in wanted]
    assert [weight._version for weight in weights] == [version + 1 for version in before]
    clear_all_([])


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


def test_windows_of_a_channels_last_tensor_cover_it(by: str) -> None:
    mask = half((4, 6, 3, 5))
    weight = dirty((4, 6, 3, 5)).to(memory_format=torch.channels_last)
    bits = Bits.of(mask, weight)
    bits.clear_(weight, own=True)
    assert bits.is_flat(weight)
    assert Bits.of(mask, weight, lean=True).is_flat(weight) == (by == "kernels")
    windows = [(start, start + 64) for start in range(0, 360, 64)]
    for index in (~mask).nonzero().tolist()[::17]:
        changed = weight.clone(memory_format=torch.preserve_format)
        changed[tuple(index)] = 1.0
        assert [bits.is_clear(*window, changed) for window in windows].count(False) == 1


def test_other_layouts_are_not_flat(by: str) -> None:
    mask = half((4, 6))
    bits = Bits.of(mask, torch.zeros(4, 6))
    assert bits.is_flat(torch.zeros(6, 4).t()) == (by == "kernels")
    assert not bits.is_flat(torch.zeros(4, 12)[:, ::2])
    assert not bits.is_flat(torch.zeros(4, 6).to_sparse())


def test_window_of_tensors_is_not_clear_when_one_has_another_shape() -> None:
    bits, weight = Bits.of(half((30, 8)), torch.zeros(30, 8)), torch.zeros(30, 8)
    with pytest.raises(RuntimeError):
        bits.is_clear(0, 240, weight, torch.zeros(3, 8))
