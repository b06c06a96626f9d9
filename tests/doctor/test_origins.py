"""How a tensor came from another: found for any cut, copy or mask, and never claimed for constants."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur.doctor.origins import derive, kept_in_view, relation

SHAPES = st.lists(st.integers(2, 5), min_size=1, max_size=4)


def values(shape: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor in which every value is different and none is 0."""
    order = torch.randperm(torch.Size(shape).numel()) + 1
    return order.to(dtype).view(shape)


def cut(tensor: Tensor, kept: list[list[int]]) -> Tensor:
    """The entries at all combinations of kept positions, one by one."""
    entries = [tensor[place] for place in product(*kept)]
    return torch.stack(entries).view([len(positions) for positions in kept])


@given(st.data(), SHAPES)
def test_derive_finds_the_positions_of_any_cut(data: st.DataObject, shape: list[int]) -> None:
    kept = [data.draw(st.permutations(range(n)).map(lambda p, n=n: p[: max(1, n - 1)])) for n in shape]
    old = values(shape)
    origin = derive(cut(old, kept), old)
    assert origin is not None
    assert origin.kind == "cut"
    assert {s.dim: s.keep.tolist() for s in origin.selections} == dict(enumerate(kept))


@given(st.data(), SHAPES)
def test_kept_in_view_finds_the_positions_of_any_slice(data: st.DataObject, shape: list[int]) -> None:
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    steps = [data.draw(st.integers(1, 3)) for _ in shape]
    index = tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))
    whole = torch.zeros(shape)
    found = kept_in_view(whole[index], whole.shape, whole.stride())
    assert found is not None
    wanted = {dim: list(range(n))[s] for dim, (n, s) in enumerate(zip(shape, index, strict=True))}
    assert {s.dim: s.keep.tolist() for s in found} == {d: k for d, k in wanted.items() if k != list(range(shape[d]))}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_kept_in_view_knows_the_order_of_strides(order: torch.memory_format) -> None:
    whole = torch.zeros(4, 3, 5, 2).contiguous(memory_format=order)
    found = kept_in_view(whole[1:3, :, ::2], whole.shape, whole.stride())
    assert [(s.dim, s.keep.tolist()) for s in found] == [(0, [1, 2]), (2, [0, 2, 4])]


@pytest.mark.parametrize(
    "view",
    [torch.zeros(4, 5), torch.zeros(4, 6).t(), torch.zeros(4, 6)[:, :3].clone(), torch.zeros(6, 4)[:4, :3]],
    ids=["another size", "transposed", "a copy", "another row length"],
)
def test_kept_in_view_refuses_what_is_no_slice_of_such_a_tensor(view: Tensor) -> None:
    assert kept_in_view(view, (4, 6), (6, 1)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda w: w, "same memory"),
        (lambda w: w.view_as(w), "same memory"),
        (lambda w: w.clone(), "copied"),
        (lambda w: w * (w > 5), "masked"),
        (lambda w: 0.5 * w, "scaled"),
        (lambda w: w[[4, 1]], "cut"),
        (lambda w: w[1:4], "cut"),
        (lambda w: w[:, [0, 2]][[0, 1, 3]], "cut"),
    ],
)
def test_derive_tells_what_was_done(dtype: torch.dtype, change: object, kind: str) -> None:
    old = values([5, 4], dtype)
    assert derive(change(old), old).kind == kind


def test_derive_sees_through_a_change_of_dtype() -> None:
    old = torch.randn(5, 4)
    assert derive(old.half(), old).kind == "copied"


def test_derive_finds_a_cut_that_is_masked_too() -> None:
    old = values([5, 4])
    new = old[[0, 2, 3]].clone()
    new[0, 1] = 0.0
    assert [(s.dim, s.keep.tolist()) for s in derive(new, old).selections] == [(0, [0, 2, 3])]


STRANGERS = {
    "zeros": (torch.zeros(4), torch.zeros(4)),
    "ones": (torch.ones(3), torch.ones(4)),
    "zeros of values": (torch.zeros(3, 2), torch.arange(8.0).view(4, 2)),
    "other values": (torch.arange(8.0).view(4, 2), 0.5 + torch.arange(8.0).view(4, 2)),
    "smaller": (torch.arange(6.0).view(3, 2), 0.5 + torch.arange(8.0).view(4, 2)),
    "larger": (torch.arange(5.0), torch.arange(4.0)),
    "another dim": (torch.arange(4.0), torch.arange(4.0).view(2, 2)),
    "meta": (torch.empty(4, device="meta"), torch.empty(4, device="meta")),
    "empty": (torch.empty(0, 4), torch.arange(12.0).view(3, 4)),
    "sparse": (torch.arange(4.0).to_sparse(), torch.arange(4.0)),
}


@pytest.mark.parametrize(("new", "old"), STRANGERS.values(), ids=STRANGERS)
def test_derive_claims_nothing_without_evidence(new: Tensor, old: Tensor) -> None:
    assert derive(new, old) is None


def test_derive_does_not_take_repeated_rows_for_a_cut() -> None:
    old = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    assert derive(old[:2].clone(), old) is None


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        ([1.0, 2.0, 3.0], "copied"),
        ([1.0, 0.0, 3.0], "masked"),
        ([2.0, 4.0, 6.0], "scaled"),
        ([1.0, 1.0, 1.0], "new values"),
        ([1.0, 2.0], "cut"),
    ],
)
def test_relation_of_tensors_that_belong_together(new: list[float], kind: str) -> None:
    assert relation(torch.tensor(new), torch.tensor([1.0, 2.0, 3.0])) == kind
