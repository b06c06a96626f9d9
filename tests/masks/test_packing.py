from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur.masks import packing
from secateur.masks.packing import (
    clear_,
    clear_packed_,
    count_kept,
    num_bytes,
    pack,
    unpack,
    word_dtype,
    words,
    words_for,
)

WORDS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
    torch.complex64: torch.int64,
    torch.complex128: torch.int64,
    torch.int32: torch.int32,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 3).contiguous().transpose(0, 3),
    "strided": lambda t: torch.stack((t, t), dim=-1)[..., 0],
    "offset": lambda t: torch.cat((t[:1], t))[1:],
}
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
every_dtype = pytest.mark.parametrize("dtype", WORDS, ids=str)
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
both_clears = pytest.mark.parametrize("packed", [False, True], ids=["words", "packed"])


def clear(tensor: Tensor, mask: Tensor, *, packed: bool) -> Tensor:
    return clear_packed_(tensor, pack(mask)) if packed else clear_(tensor, words_for(tensor, mask))


def as_bytes(tensor: Tensor) -> list[int]:
    """The bytes of all entries in row-major order: tells -0.0 from 0.0, and one nan from another."""
    flat = tensor.detach().contiguous().view(-1)
    return (torch.view_as_real(flat) if flat.is_complex() else flat).view(torch.uint8).flatten().tolist()


def difficult(dtype: torch.dtype, shape: tuple[int, ...] = (3, 5, 2, 4)) -> Tensor:
    """Numbers of a dtype with every special value among them."""
    specials = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-40, -1.5])
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-9, 9, shape).to(dtype)
    numbers = specials[torch.randint(0, len(specials), shape)]
    return (torch.complex(numbers, numbers.flip(0)) if dtype.is_complex else numbers).to(dtype)


def cleared_by_where(tensor: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))


# bits


@given(shapes, st.floats(0, 1))
def test_pack_is_numpys_packbits_padded_to_eight_bytes(shape: tuple[int, ...], density: float) -> None:
    mask = torch.rand(shape) < density
    expected = np.packbits(mask.numpy().ravel(), bitorder="little").tolist()
    bits = pack(mask)
    assert bits.dtype == torch.uint8
    assert len(bits) == num_bytes(mask.numel()) == math.ceil(mask.numel() / 64) * 8
    assert bits.tolist() == expected + [0] * (len(bits) - len(expected))


@given(shapes, st.floats(0, 1))
def test_unpack_undoes_pack(shape: tuple[int, ...], density: float) -> None:
    mask = torch.rand(shape) < density
    again = unpack(pack(mask), mask.shape)
    assert again.dtype == torch.bool
    assert again.shape == mask.shape
    assert torch.equal(again, mask)
    assert again.untyped_storage().nbytes() == mask.numel()
    assert count_kept(pack(mask)) == sum(mask.flatten().tolist())


def test_pack_follows_rows_whatever_the_strides() -> None:
    mask = torch.rand(7, 12) < 0.5
    assert torch.equal(pack(mask.t()), pack(mask.t().contiguous()))
    assert torch.equal(pack(mask[1::2, 3:]), pack(mask[1::2, 3:].contiguous()))
    assert torch.equal(pack(mask[:, :1].expand(7, 12)), pack(mask[:, :1].repeat(1, 12)))


def test_unpack_gives_a_usable_mask_after_a_first_call_in_inference_mode() -> None:
    packing._byte_table.cache_clear()
    bits = pack(torch.ones(64, dtype=torch.bool))
    with torch.inference_mode():
        unpack(bits, torch.Size([64]))
    mask = unpack(bits, torch.Size([64]))
    mask[0] = False
    weight = torch.ones(64, requires_grad=True)
    (weight * mask).sum().backward()
    assert weight.grad is not None
    assert weight.grad.sum() == 63


def test_pack_refuses_what_is_not_bool() -> None:
    with pytest.raises(InvalidInputError, match=r"must be bool, True = kept\.\n  dtype: torch\.float32\n  fix:"):
        pack(torch.ones(3))


@pytest.mark.parametrize(
    "bits", [torch.zeros(8, dtype=torch.uint8), torch.zeros(16), torch.zeros(2, 8, dtype=torch.uint8)]
)
def test_unpack_refuses_bits_of_another_mask(bits: Tensor) -> None:
    with pytest.raises(
        ShapeError, match=r"do not fit the mask\.\n  bits: .*wanted: torch\.uint8 \(16,\) for 70 entries"
    ):
        unpack(bits, torch.Size([7, 10]))


# words


@pytest.mark.parametrize(("dtype", "expected"), WORDS.items(), ids=str)
def test_words_are_as_wide_as_the_weights(dtype: torch.dtype, expected: torch.dtype) -> None:
    assert word_dtype(dtype) == expected
    made = words(torch.tensor([True, False]), dtype)
    assert made.dtype == expected
    assert made.tolist() == ([[-1, -1], [0, 0]] if dtype == torch.complex128 else [-1, 0])


@every_layout
def test_words_for_a_tensor_have_its_memory_order(layout: Callable[[Tensor], Tensor]) -> None:
    tensor = layout(torch.rand(3, 5, 2, 4))
    mask = torch.rand(3, 5, 2, 4) < 0.5
    made = words_for(tensor, mask)
    assert torch.equal(made != 0, mask)
    assert made.stride() == torch.empty_like(tensor).stride()


def test_words_for_refuses_a_mask_of_another_shape() -> None:
    with pytest.raises(ShapeError, match=r"another shape than its tensor\.\n  tensor: \(4, 3\)    mask: \(3,\)"):
        words_for(torch.rand(4, 3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(InvalidInputError, match=r"must be bool, True = kept\.\n  dtype: torch\.int64"):
        words_for(torch.rand(2), torch.tensor([1, 0]))


# clearing


@both_clears
@every_dtype
@every_layout
def test_clear_equals_where_bit_for_bit(layout: Callable[[Tensor], Tensor], dtype: torch.dtype, packed: bool) -> None:
    tensor = layout(difficult(dtype))
    mask = torch.rand(tensor.shape) < 0.5
    expected = as_bytes(cleared_by_where(tensor, mask))
    pointer, strides = tensor.data_ptr(), tensor.stride()
    assert clear(tensor, mask, packed=packed) is tensor
    assert as_bytes(tensor) == expected
    assert (tensor.data_ptr(), tensor.stride()) == (pointer, strides)


@given(shapes, st.integers(1, 200), st.sampled_from([torch.float32, torch.bfloat16, torch.complex128]), st.booleans())
def test_clear_packed_equals_where_for_every_chunk(
    shape: tuple[int, ...], chunk: int, dtype: torch.dtype, reversed_strides: bool
) -> None:
    tensor = difficult(dtype, shape)
    if reversed_strides:
        tensor = tensor.permute(tuple(reversed(range(len(shape)))))
    mask = torch.rand(tensor.shape) < 0.5
    expected = as_bytes(cleared_by_where(tensor, mask))
    clear_packed_(tensor, pack(mask), chunk=chunk)
    assert as_bytes(tensor) == expected


@both_clears
def test_clear_does_not_touch_what_lies_between_the_entries(packed: bool) -> None:
    base = torch.full((6, 6), -1.0)
    clear(base[1:5:2, 1:5], torch.zeros(2, 4, dtype=torch.bool), packed=packed)
    assert base.count_nonzero() == 36 - 8
    assert base[1:5:2, 1:5].count_nonzero() == 0


@both_clears
def test_clear_changes_a_leaf_and_raises_its_version(packed: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(8, 9))
    squared = (weight * weight).sum()
    version = weight._version
    clear(weight, torch.eye(8, 9, dtype=torch.bool), packed=packed)
    assert weight._version > version
    assert weight.is_leaf
    assert weight.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


@both_clears
def test_clear_takes_scalars_and_tensors_without_entries(packed: bool) -> None:
    for dtype in (torch.float32, torch.complex128):
        scalar = torch.tensor(math.nan).to(dtype)
        assert clear(scalar, torch.tensor(True), packed=packed).isnan()
        assert clear(scalar, torch.tensor(False), packed=packed) == 0
        assert clear(torch.empty(0, 3, dtype=dtype), torch.empty(0, 3, dtype=torch.bool), packed=packed).shape == (0, 3)


@both_clears
@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 1).expand(3, 4),
        torch.ones(6).as_strided((3, 4), (1, 1)),
        torch.ones(20).as_strided((4, 3), (3, 2)),
        torch.ones(7).as_strided((2, 2, 2), (3, 2, 1)),  # 3 = 2 + 1
    ],
    ids=["expanded", "sliding", "interleaved", "sum of strides"],
)
def test_clear_refuses_entries_that_may_share_memory(tensor: Tensor, packed: bool) -> None:
    with pytest.raises(UnsupportedError, match=r"may share memory.*\n  shape: .*strides: .*\n  fix:   tensor\.contig"):
        clear(tensor, torch.zeros(tensor.shape, dtype=torch.bool), packed=packed)
    assert tensor.eq(1).all()


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3)], ids=str
)
def test_clear_refuses_words_of_another_tensor(wrong: Tensor) -> None:
    tensor = torch.ones(2, 3)
    with pytest.raises(ShapeError, match=r"do not fit the tensor\.\n  tensor: torch\.float32 \(2, 3\)    words: "):
        clear_(tensor, wrong)
    assert tensor.eq(1).all()


def test_clear_packed_refuses_bits_of_another_tensor() -> None:
    tensor = torch.ones(2, 3)
    with pytest.raises(
        ShapeError, match=r"do not fit the mask\.\n  bits: torch\.uint8 \(16,\)    wanted: .* 6 entries"
    ):
        clear_packed_(tensor, torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(InvalidInputError, match=r"at least one entry\.\n  chunk: 0"):
        clear_packed_(tensor, torch.zeros(8, dtype=torch.uint8), chunk=0)
    assert tensor.eq(1).all()


class LargestResult(TorchDispatchMode):
    """Remembers the most bytes that any op returned in memory of its own."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return result


@every_layout
def test_clear_packed_makes_nothing_larger_than_a_chunk(layout: Callable[[Tensor], Tensor]) -> None:
    tensor = layout(torch.ones(40, 30, 8, 8))
    bits = pack(torch.rand(tensor.shape) < 0.5)
    clear_packed_(tensor[:1, :1, :1], bits[:8].new_zeros(8))  # the table is made once for all
    with LargestResult(tensor, bits) as largest:
        clear_packed_(tensor, bits, chunk=1024)
    assert 0 < largest.nbytes <= 1024 + 8
