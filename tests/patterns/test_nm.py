from __future__ import annotations

import math
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import secateur._native as native
from secateur._errors import InfeasibleError, InvalidInputError, ShapeError
from secateur.patterns import NM

TIED = [-math.inf, -1.0, -0.0, 0.0, 0.5, 1.0, math.inf]


@pytest.fixture(params=["torch", "native"], autouse=True, scope="module")
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is chosen in pure torch, and everything that can be with the native kernels."""
    library = native.library() if request.param == "native" else None
    with patch.object(native, "library", return_value=library):
        yield


def by_hand(score: Tensor, pattern: NM) -> Tensor:
    """Group after group, the lowest go one by one; a stable sort, so of equal ones the first goes first."""
    mask = torch.ones_like(score, dtype=torch.bool)
    lines = score.movedim(pattern.dim, -1)
    for index in torch.cartesian_prod(*map(torch.arange, lines.shape[:-1])).view(-1, lines.dim() - 1).tolist():
        line, kept = lines[tuple(index)].tolist(), mask.movedim(pattern.dim, -1)[tuple(index)]
        for start in range(0, len(line), pattern.m):
            group = range(start, start + pattern.m)
            for i in sorted(group, key=lambda i: line[i])[: pattern.m - pattern.n]:
                kept[i] = False
    return mask


def masked(score: Tensor, pattern: NM) -> Tensor:
    count = score.numel() // pattern.m * (pattern.m - pattern.n)
    return pattern.expand(pattern.choose(pattern.reduce(score), count), score.shape)


@given(
    n_m=st.integers(2, 7).flatmap(lambda m: st.tuples(st.integers(1, m - 1), st.just(m))),
    others=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    groups=st.integers(0, 4),
    place=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_nm_keeps_n_of_every_m_along_its_dim(
    n_m: tuple[int, int], others: list[int], groups: int, place: int, seed: int
) -> None:
    n, m = n_m
    dim = place % (len(others) + 1)
    shape = [*others[:dim], groups * m, *others[dim:]]
    choice = torch.randint(len(TIED), shape, generator=torch.Generator().manual_seed(seed))
    score = torch.tensor(TIED)[choice]
    pattern = NM(n, m, dim)
    assert torch.equal(masked(score, pattern), by_hand(score, pattern))
    assert torch.equal(masked(score, pattern), masked(score, NM(n, m, dim - len(shape))))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (16, 64), (1, 64), (63, 64), (7, 65), (100, 256)])
def test_nm_takes_small_and_large_groups(n: int, m: int) -> None:
    score = torch.randint(0, 40, (3, 4 * m)).float()
    assert torch.equal(masked(score, NM(n, m)), by_hand(score, NM(n, m)))


def test_nm_ranks_more_groups_than_it_takes_at_once() -> None:
    score = torch.randint(0, 40, (600, 1024)).float()
    groups = score.view(-1, 4)
    order = groups.argsort(dim=1, stable=True)
    expected = torch.ones_like(groups, dtype=torch.bool).scatter_(1, order[:, :2], False)
    assert torch.equal(masked(score, NM(2, 4)), expected.view(600, 1024))


def test_nm_goes_along_the_input_channels_of_a_convolution() -> None:
    score = torch.rand(5, 8, 3, 3)
    kept = masked(score, NM(2, 4, dim=1))
    assert kept.view(5, 2, 4, 3, 3).sum(dim=2).eq(2).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_nm_takes_every_float(dtype: torch.dtype) -> None:
    score = torch.randn(6, 12).to(dtype)
    assert torch.equal(masked(score, NM(1, 3)), by_hand(score, NM(1, 3)))


def test_nm_fixes_the_sparsity() -> None:
    assert (NM().sparsity, NM(1, 4).sparsity, NM(2, 3).sparsity) == (0.5, 0.75, 1 / 3)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((64, 30), "size 30 of dim 1 is not divisible by 4"),
        ((16, 3, 3, 3), "size 3 of dim 1 is not divisible by 4"),
        ((12,), "there is no dim 1"),
        ((64, 64), ""),
    ],
)
def test_nm_says_why_a_tensor_does_not_fit(shape: tuple[int, ...], why: str) -> None:
    assert NM(2, 4).misfit(torch.Size(shape)) == why
    assert NM(2, 4, dim=-len(shape) + 1).misfit(torch.Size(shape)) == (why if len(shape) > 1 else "")


@pytest.mark.parametrize(("n", "m"), [(0, 4), (4, 4), (5, 4), (-1, 4), (2, 0), (2.0, 4), (True, 4)])
def test_nm_refuses_groups_that_keep_all_or_nothing(n: int, m: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"0 < n < m\.\n  n: {n}    m: {m}\n  fix"):
        NM(n, m)


@pytest.mark.parametrize("dim", ["1", 1.0, None, False], ids=repr)
def test_nm_refuses_a_dim_that_is_no_whole_number(dim: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"a whole number[\s\S]*pattern: NM    dim: {dim!r}"):
        NM(2, 4, dim)


@pytest.mark.parametrize("count", [0, 7, 9])
def test_nm_refuses_any_other_number(count: int) -> None:
    with pytest.raises(
        InfeasibleError, match=rf"NM\(n=2, m=4, dim=1\) removes 8 of 16[\s\S]*asked: {count}\n[\s\S]*uniform"
    ):
        NM().choose(torch.rand(16), count)


def test_nm_refuses_scores_that_cannot_be_ranked() -> None:
    with pytest.raises(InvalidInputError, match=r"some are NaN\.\n  nan: 1 of 4"):
        NM().choose(torch.tensor([1.0, math.nan, 2.0, 3.0]), 2)
    with pytest.raises(ShapeError, match=r"groups of 4\.\n  scores: \(6,\)"):
        NM().choose(torch.rand(6), 3)


def test_nm_refuses_units_of_another_tensor() -> None:
    with pytest.raises(ShapeError, match=r"one for each unit.*\n  kept: \(8,\)    units: 16"):
        NM().expand(torch.ones(8, dtype=torch.bool), torch.Size([4, 4]))
