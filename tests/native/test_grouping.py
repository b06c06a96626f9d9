"""The choice in groups of neighbours: every level against a stable sort of each group."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import secateur._native as native
from secateur._native.grouping import LARGEST_GROUP, highest_of_groups
from tests.native.products import MACHINE_LEVELS, fenced, fences, on
from tests.native.test_selecting import KINDS, made

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)


def by_sorting(scores: Tensor, size: int, num_kept: int) -> Tensor:
    """The last ones of each group in the order of a stable sort."""
    order = (scores + 0.0).view(-1, size).sort(dim=1, stable=True).indices
    marks = torch.zeros(order.shape, dtype=torch.bool)
    return marks.scatter_(1, order[:, size - num_kept :], True).view(-1)


@LEVEL
@settings(max_examples=150)
@given(
    size=st.integers(2, LARGEST_GROUP),
    share=st.floats(0, 1),
    number=st.sampled_from([0, 1, 2, 3, 15, 16, 17, 31, 33, 64, 500]),
    kind=st.sampled_from(list(KINDS)),
    seed=st.integers(0, 99),
)
def test_the_highest_of_each_group_are_marked_and_nothing_else_is_written(level, size, share, number, kind, seed):
    torch.manual_seed(seed)
    scores = made(kind, number * size) if number else torch.empty(0)
    num_kept = 1 + int(share * (size - 2))
    with on(level), fences():
        found = highest_of_groups(fenced(scores), size, num_kept)
    assert torch.equal(found, by_sorting(scores, size, num_kept))


@LEVEL
def test_threads_change_nothing(level: str) -> None:
    scores = torch.randn(4 * 300_007).mul(9).round()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with on(level):
            found = highest_of_groups(scores, 4, 2)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, by_sorting(scores, 4, 2))


@LEVEL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_and_strides_are_ranked_exactly(level: str, dtype: torch.dtype) -> None:
    scores = torch.randn(4800).to(dtype)[::3]
    with on(level):
        found = highest_of_groups(scores, 8, 3)
    assert torch.equal(found, by_sorting(scores.contiguous(), 8, 3))


def test_what_kernels_cannot_rank_is_left_to_others() -> None:
    assert highest_of_groups(torch.randn(8, dtype=torch.float64), 4, 2) is None
    assert highest_of_groups(torch.randn(8, device="meta"), 4, 2) is None
    assert highest_of_groups(torch.randn(64), LARGEST_GROUP + 1, 2) is None
    with patch.object(native, "library", return_value=None):
        assert highest_of_groups(torch.randn(8), 4, 2) is None
