"""Taking and appending positions of one dim, against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError, ShapeError
from secateur.surgery import Selection
from secateur.surgery.selection import new_values

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint16,
]
LAYOUTS = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda t: t[:1].expand_as(t),
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
}


def numbered(shape: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor whose entries differ, as far as the dtype can tell."""
    count = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    return (count % 2 == 0) if dtype == torch.bool else (count % 100).to(dtype)


def as_doubles(tensor: Tensor) -> Tensor:
    """Values that can be compared and indexed, for dtypes that cannot."""
    return tensor if tensor.is_complex() else tensor.double()


@st.composite
def selections(draw: st.DrawFn, dims: int = 4) -> tuple[list[int], Selection]:
    """A shape, and something that happens to one of its dims."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=dims))
    dim = draw(st.integers(0, len(shape) - 1))
    keep = sorted(draw(st.sets(st.integers(0, shape[dim] - 1), min_size=1)))
    return shape, Selection(dim, shape[dim], torch.tensor(keep), draw(st.integers(0, 3)))


@given(selections(), st.sampled_from(DTYPES))
def test_take_keeps_positions_and_appends_the_fill(case: tuple[list[int], Selection], dtype: torch.dtype) -> None:
    shape, selection = case
    tensor = numbered(shape, dtype)
    found = selection.take(tensor, fill=1.0)
    kept = [as_doubles(tensor).select(selection.dim, i) for i in selection.keep.tolist()]
    new = [torch.ones_like(kept[0])] * selection.num_new
    assert found.dtype == dtype
    assert torch.equal(as_doubles(found), torch.stack([*kept, *new], selection.dim))
    assert found.untyped_storage().nbytes() == found.numel() * found.itemsize


@pytest.mark.parametrize("layout", LAYOUTS)
@given(selection=selections())
def test_take_reads_any_layout(layout: str, selection: tuple[list[int], Selection]) -> None:
    shape, chosen = [2, 3, 4, 2], selection[1]
    tensor = LAYOUTS[layout](numbered(shape))
    keep = chosen.keep[chosen.keep < tensor.shape[chosen.dim]]
    found = Selection(chosen.dim, shape[chosen.dim], keep).take(tensor)
    assert torch.equal(found, tensor.index_select(chosen.dim, keep))


@pytest.mark.parametrize("num_new", [0, 3])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [
        ((6, 4, 3, 3), torch.channels_last),
        ((6, 4, 3, 3), torch.contiguous_format),
        ((6, 4, 1, 1), torch.channels_last),
        ((6, 1, 3, 3), torch.channels_last),
        ((6, 4, 2, 3, 3), torch.channels_last_3d),
    ],
)
def test_take_keeps_the_memory_format(
    shape: tuple[int, ...], memory_format: torch.memory_format, dim: int, num_new: int
) -> None:
    tensor = torch.randn(shape).contiguous(memory_format=memory_format)
    selection = Selection(dim, shape[dim], torch.arange((shape[dim] + 1) // 2), num_new)
    found = selection.take(tensor)
    assert found.is_contiguous(memory_format=memory_format) or tensor.is_contiguous()
    if tensor.is_contiguous():
        assert found.is_contiguous()


def test_take_keeps_the_bits_of_nan() -> None:
    bits = torch.tensor([0x7FC00001, 0x7FC00002], dtype=torch.int32)
    found = Selection(0, 2, torch.tensor([1])).take(bits.view(torch.float32))
    assert found.view(torch.int32).tolist() == [0x7FC00002]


def test_take_resolves_lazy_conjugation() -> None:
    tensor = torch.tensor([1 + 2j, 3 + 4j]).conj()
    assert Selection(0, 2, torch.tensor([1])).take(tensor).tolist() == [3 - 4j]


def test_take_works_on_the_meta_device() -> None:
    found = Selection(1, 5, torch.tensor([0, 3]), num_new=2).take(torch.empty(3, 5, device="meta"))
    assert found.is_meta
    assert found.shape == (3, 4)


@given(st.integers(0, 1), st.sets(st.integers(0, 3), min_size=1), st.integers(0, 2), st.booleans())
def test_take_follows_sparse_gradients(dim: int, kept: set[int], num_new: int, is_hybrid: bool) -> None:
    dense = torch.tensor([[0.0, 0, 0, 0], [1, 2, 0, 3], [0, 0, 0, 0], [4, 0, 5, 6]])
    sparse = dense.to_sparse(1 if is_hybrid else 2)
    selection = Selection(dim, 4, torch.tensor(sorted(kept)), num_new)
    found = selection.take(sparse)
    assert found.layout == torch.sparse_coo
    new = dense.index_select(dim, torch.zeros(num_new, dtype=torch.int64)) * 0
    assert torch.equal(found.to_dense(), torch.cat([dense.index_select(dim, selection.keep), new], dim))


def test_take_sums_uncoalesced_gradients() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[2, 2, 0]]), torch.tensor([[1.0], [2.0], [4.0]]), (3, 1), check_invariants=True
    )
    assert Selection(0, 3, torch.tensor([0, 2])).take(sparse).to_dense().tolist() == [[4.0], [3.0]]


def test_removed_and_positions_are_what_is_left_out_and_what_is_there() -> None:
    selection = Selection(0, 5, torch.tensor([0, 3]), num_new=2)
    assert selection.removed.tolist() == [1, 2, 4]
    assert selection.positions.tolist() == [0, 3, 5, 6]
    assert selection.new_size == 4


def test_same_as_looks_at_everything_but_the_values() -> None:
    one = Selection(0, 5, torch.tensor([0, 3]), 1)
    assert one.same_as(Selection(0, 5, torch.tensor([0, 3]), 1, torch.ones(1)))
    assert not one.same_as(Selection(1, 5, torch.tensor([0, 3]), 1))
    assert not one.same_as(Selection(0, 6, torch.tensor([0, 3]), 1))
    assert not one.same_as(Selection(0, 5, torch.tensor([0, 3]), 0))
    assert not one.same_as(Selection(0, 5, torch.tensor([0, 2]), 1))


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (None, [0.0, 0.0]),
        (torch.tensor([5.0, 6.0]), [5.0, 6.0]),
        (nn.init.ones_, [1.0, 1.0]),
        (lambda slab: slab.add_(2), [2.0, 2.0]),
        (lambda slab: None, [0.0, 0.0]),
        (lambda slab: torch.full_like(slab, 7), [7.0, 7.0]),
        (torch.tensor([1, 2]), [1.0, 2.0]),
        (torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True), [3.0, 4.0]),
    ],
    ids=["zeros", "tensor", "init function", "in place", "nothing", "another tensor", "ints", "doubles"],
)
def test_take_value_appends_what_init_says(init: Any, expected: list[float]) -> None:
    selection = Selection(0, 2, torch.tensor([1]), 2, init)
    found = selection.take_value(torch.tensor([8.0, 9.0]))
    assert found.tolist() == [9.0, *expected]
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_init_functions_serve_float8(dtype: torch.dtype) -> None:
    assert new_values(nn.init.ones_, [3], torch.zeros(1).to(dtype)).double().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("init", [torch.ones(3), lambda slab: torch.ones(3)], ids=["tensor", "function"])
def test_init_of_another_shape_is_refused(init: Any) -> None:
    with pytest.raises(ShapeError, match="`init` has another shape than the new positions"):
        Selection(0, 2, torch.tensor([0, 1]), 2, init).take_value(torch.zeros(2))


def test_init_that_would_lose_its_values_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="`init` has another kind of dtype"):
        Selection(0, 2, torch.tensor([0, 1]), 1, torch.tensor([1j])).take_value(torch.zeros(2))


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(list(LAYOUTS)))
def test_take_puts_new_positions_where_the_order_says(data: st.DataObject, dtype: torch.dtype, layout: str) -> None:
    shape = [data.draw(st.integers(1, 4)) for _ in range(4)]
    dim, num_new = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    tensor = LAYOUTS[layout](numbered(shape, dtype))
    keep = torch.tensor(sorted(data.draw(st.sets(st.integers(0, shape[dim] - 1), min_size=1))))
    order = torch.tensor(data.draw(st.permutations(range(len(keep) + num_new))))
    last = Selection(dim, shape[dim], keep, num_new)
    moved = Selection(dim, shape[dim], keep, num_new, order=order)
    expected = as_doubles(last.take(tensor, 1.0)).index_select(dim, order)
    found = moved.take(tensor, 1.0)
    assert torch.equal(as_doubles(found), expected)
    assert found.dtype == dtype
    assert found.stride() == last.take(tensor, 1.0).stride()
    assert torch.equal(moved.positions, last.positions[order])
    assert moved.same_as(moved.on(dim))
    assert moved.same_as(last) == (order.tolist() == sorted(order.tolist()))


def test_take_moves_entries_of_sparse_gradients() -> None:
    dense = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    for dim, order in ((0, [3, 0, 1, 2]), (1, [0, 2, 1])):
        selection = Selection(dim, dense.shape[dim], torch.arange(dense.shape[dim]), 1, order=torch.tensor(order))
        sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([[1.0, 2.0]]), (3, 2), check_invariants=True)
        assert torch.equal(selection.take(sparse).to_dense(), selection.take(dense))
