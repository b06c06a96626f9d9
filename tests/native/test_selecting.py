"""The choice of the lowest scores: every level against a stable sort of numpy."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import secateur._native as native
from secateur._native.selecting import chosen, counts_of_lowest
from tests.native.products import MACHINE_LEVELS, fenced, fences, on

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)

SIZES = st.sampled_from([1, 2, 63, 64, 65, 128, 200, 1000, 4095, 4097, 9000, 65535, 65537, 140_001])
"""On both sides of what is looked at together, of where a sample is drawn, and of the pieces."""

KINDS = {
    "all different": lambda n: torch.randn(n),
    "few values": lambda n: torch.randn(n).mul(2).round(),
    "one value": lambda n: torch.full((n,), 3.0),
    "zeros of both signs": lambda n: torch.where(torch.randn(n) > 0, 0.0, -0.0),
    "infinite": lambda n: torch.where(torch.rand(n) < 0.3, -math.inf, torch.randn(n).exp() / (torch.rand(n) > 0.1)),
    "any bits": lambda n: torch.randint(-(2**31), 2**31, (n,)).to(torch.int32).view(torch.float32).nan_to_num(0.0),
    "subnormal": lambda n: torch.randint(-9, 9, (n,), dtype=torch.int32).mul(2**20 + 1).view(torch.float32) * 1e-38,
    "masked": lambda n: torch.randn(n) * (torch.rand(n) < 0.1),
    "sorted": lambda n: torch.randn(n).sort().values,
}


def made(kind: str, size: int) -> Tensor:
    """Scores of a kind without nan."""
    return KINDS[kind](size).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)


def by_sorting(scores: Tensor, count: int, may: Tensor) -> Tensor:
    """Marks at the lowest of those that may be chosen, of equal ones at the first."""
    places = may.numpy().nonzero()[0]
    order = np.argsort(scores.double().numpy()[places], kind="stable")
    marks = torch.zeros(len(scores), dtype=torch.bool)
    marks[torch.from_numpy(places[order[:count]])] = True
    return marks


@LEVEL
@settings(max_examples=150)
@given(
    size=SIZES,
    kind=st.sampled_from(list(KINDS)),
    density=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    share=st.sampled_from([0.0, 0.001, 0.03, 0.3, 0.9, 0.999, 1.0]),
    restricted=st.sampled_from(["", "kept", "masked"]),
    flags=st.fixed_dictionaries({"highest": st.booleans(), "sizes": st.booleans(), "rest": st.booleans()}),
    seed=st.integers(0, 99),
)
def test_the_lowest_are_marked_and_nothing_else_is_written(level, size, kind, density, share, restricted, flags, seed):
    torch.manual_seed(seed)
    scores, kept = made(kind, size), torch.rand(size) < density
    may = {"": torch.ones(size, dtype=torch.bool), "kept": kept, "masked": ~kept}[restricted]
    count = max(round(share * int(may.sum())), 1)
    ranked = scores.abs() if flags["sizes"] else scores
    with on(level), fences():
        found = chosen(fenced(scores), count, kept=kept if restricted else None, masked=restricted == "masked", **flags)
        if count > int(may.sum()):
            assert found is None
            return
    expected = by_sorting(-ranked if flags["highest"] else ranked, count, may)
    assert torch.equal(found, ~expected if flags["rest"] else expected)


@LEVEL
@settings(max_examples=80)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 64, 65, 1000, 5000, 70_000]), min_size=1, max_size=5),
    kind=st.sampled_from(list(KINDS)),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_counts_are_those_of_one_sort_over_all(level, sizes, kind, share, seed) -> None:
    torch.manual_seed(seed)
    tensors = [made(kind, size) for size in sizes]
    count = round(share * sum(sizes))
    everything = torch.cat(tensors)
    marks = by_sorting(everything, count, torch.ones(len(everything), dtype=torch.bool))
    with on(level):
        found = counts_of_lowest([fenced(tensor) for tensor in tensors], count)
        assert counts_of_lowest(tensors, sum(sizes) + 1) is None
    assert found == ([int(part.sum()) for part in marks.split(sizes)] if count else None)


@LEVEL
@pytest.mark.parametrize("value", [-9.0, 0.0, 9.0, math.inf, -math.inf])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_choice_is_exact_when_the_sample_misleads(level: str, value: float, share: float) -> None:
    size, wanted = 100_000, int(100_000 ** (2 / 3))
    number = np.arange(wanted, dtype=np.uint64)
    with np.errstate(over="ignore"):  # the places that the kernel looks at
        mixed = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
        mixed = (mixed ^ mixed >> np.uint64(32)) >> np.uint64(11)
    places = ((number + mixed * 2.0**-53) / wanted * size).astype(np.int64)
    scores = torch.randn(size)
    scores[torch.from_numpy(places)] = value
    with on(level):
        found = chosen(scores, int(share * size))
        counts = counts_of_lowest([scores[:30_000], scores[30_000:]], int(share * size))
    expected = by_sorting(scores, int(share * size), torch.ones(size, dtype=torch.bool))
    assert torch.equal(found, expected)
    assert counts == [int(expected[:30_000].sum()), int(expected[30_000:].sum())]


@LEVEL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_ranked_exactly(level: str, dtype: torch.dtype) -> None:
    scores = torch.randn(20_000).to(dtype)
    with on(level):
        found = chosen(scores, 7000)
    assert torch.equal(found, by_sorting(scores, 7000, torch.ones(20_000, dtype=torch.bool)))


@LEVEL
def test_scores_may_lie_anyhow_in_memory(level: str) -> None:
    image = torch.randn(8, 6, 5, 5).to(memory_format=torch.channels_last)
    shapes = [torch.randn(4000)[::2], torch.randn(1).expand(2000), torch.randn(2000, dtype=torch.complex64).conj().imag]
    kept = torch.rand(4000)[::2] < 0.5
    for scores in (*shapes, image.reshape(-1), torch.randn(2000, requires_grad=True)):
        may = kept[: len(scores)]
        with on(level):
            found = chosen(scores, 300, kept=may)
        assert torch.equal(found, by_sorting(scores.detach(), 300, may))
        assert not found.requires_grad


@LEVEL
@pytest.mark.parametrize("place", [0, 63, 64, 9_998, 9_999])
def test_nan_anywhere_is_left_to_others(level: str, place: int) -> None:
    scores = torch.randn(10_000)
    scores[place] = math.nan
    kept = torch.ones(10_000, dtype=torch.bool).index_fill_(0, torch.tensor(place), False)
    with on(level):
        assert chosen(scores, 300) is None
        assert chosen(scores, 300, kept=kept) is None
        assert chosen(scores, 300, sizes=True, highest=True) is None
        assert counts_of_lowest([torch.randn(5), scores], 300) is None


@LEVEL
def test_threads_change_nothing(level: str) -> None:
    scores = torch.randn(1_000_003).mul(50).round()
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with on(level):
                found.append((chosen(scores, 300_001), counts_of_lowest(scores.split(400_000), 300_001)))
    finally:
        torch.set_num_threads(before)
    expected = by_sorting(scores, 300_001, torch.ones(len(scores), dtype=torch.bool))
    for marks, counts in found:
        assert torch.equal(marks, expected)
        assert counts == [int(part.sum()) for part in expected.split(400_000)]


class _Subclass(Tensor):
    """A tensor whose memory may mean anything."""


@pytest.mark.parametrize(
    "scores",
    [torch.randn(9, dtype=torch.float64), torch.randn(9, device="meta"), torch.randn(9).as_subclass(_Subclass)],
    ids=["double", "meta", "subclass"],
)
def test_what_kernels_cannot_rank_is_left_to_others(scores: Tensor) -> None:
    assert chosen(scores, 3) is None
    assert counts_of_lowest([torch.randn(9), scores], 3) is None


@pytest.mark.parametrize("count", [-1, 0, 10])
def test_counts_that_need_no_search_are_left_to_others(count: int) -> None:
    assert chosen(torch.randn(9), count) is None
    assert counts_of_lowest([torch.randn(4), torch.randn(5)], count) is None


def test_without_the_library_everything_is_left_to_others() -> None:
    with patch.object(native, "library", return_value=None):
        assert chosen(torch.randn(9), 3) is None
        assert counts_of_lowest([torch.randn(9)], 3) is None
