"""Which units go and which come: exactly as many as asked, by a plain sort."""

from __future__ import annotations

import math
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import secateur._native as native
from secateur import InvalidInputError
from secateur.dst import exchange
from secateur.dst.exchange import dropped, grown

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SCORES = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf]) | st.floats(-2, 2)),
    min_size=1,
    max_size=40,
)


@pytest.fixture(params=["torch", "native"], autouse=True, scope="module")
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is chosen in pure torch, and everything that can be with the native kernels."""
    library = native.library() if request.param == "native" else None
    with patch.object(native, "library", return_value=library):
        yield


def positions(chosen: torch.Tensor) -> torch.Tensor:
    return chosen.nonzero()[:, 0]


def lowest_by_sort(allowed: list[bool], score: list[float], count: int) -> list[int]:
    order = sorted((i for i, ok in enumerate(allowed) if ok), key=lambda i: (score[i], i))
    return sorted(order[:count])


@given(SCORES, st.data(), st.sampled_from(DTYPES), st.booleans())
def test_lowest_kept_units_are_dropped(units, data, dtype, sizes) -> None:
    kept = [each for each, _ in units]
    score = torch.tensor([value for _, value in units], dtype=dtype)
    count = data.draw(st.integers(0, sum(kept)))
    found = dropped(torch.tensor(kept), score, count, name="w", sizes=sizes)
    score = score.abs() if sizes else score
    assert positions(found).tolist() == lowest_by_sort(kept, score.tolist(), count)


@given(SCORES, st.data(), st.sampled_from(DTYPES), st.booleans())
def test_highest_masked_units_are_grown(units, data, dtype, sizes) -> None:
    kept = [each for each, _ in units]
    score = torch.tensor([value for _, value in units], dtype=dtype)
    count = data.draw(st.integers(0, len(kept) - sum(kept)))
    found = grown(torch.tensor(kept), score, count, name="w", sizes=sizes)
    score = score.abs() if sizes else score
    assert positions(found).tolist() == lowest_by_sort([not each for each in kept], (-score).tolist(), count)


@pytest.mark.parametrize("levels", [None, 1, 2, 50], ids=["no ties", "all tied", "two values", "some ties"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_large_tensors_give_the_same_as_a_sort(levels: int | None, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(60_000, generator=generator)
    if levels:
        score = (score * levels).round().clamp(-levels / 2, levels / 2)
    kept = torch.rand(60_000, generator=generator) < 0.2
    for allowed, choose, values in ((kept, dropped, score), (~kept, grown, -score)):
        count = int(share * int(allowed.sum()))
        order = torch.where(allowed, values, torch.inf).sort(stable=True).indices
        assert torch.equal(positions(choose(kept, score, count, name="w")), order[:count].sort().values)


@pytest.mark.parametrize("guess", [(9.0, 9.0), (-9.0, -9.0), (9.0, -9.0), (-9.0, 9.0), (0.0, 0.0)], ids=str)
def test_guess_that_misleads_costs_time_only(guess, monkeypatch) -> None:
    monkeypatch.setattr(exchange, "_guess", lambda *_, **__: guess)
    score = torch.randn(500)
    kept = torch.rand(500) < 0.3
    for allowed, choose, values in ((kept, dropped, score), (~kept, grown, -score)):
        for count in (0, 1, int(allowed.sum()) // 2, int(allowed.sum())):
            order = torch.where(allowed, values, torch.inf).sort(stable=True).indices
            assert torch.equal(positions(choose(kept, score, count, name="w")), order[:count].sort().values)


@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize("choose", [dropped, grown])
def test_nan_scores_are_refused_by_name(choose, sizes: bool) -> None:
    kept = torch.tensor([True, True, False, False])
    with pytest.raises(InvalidInputError, match=r"the scores of 'fc\.weight': some are NaN"):
        choose(kept, torch.tensor([1.0, math.nan, math.nan, 2.0]), 1, name="fc.weight", sizes=sizes)
