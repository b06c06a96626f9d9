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
from secateur import _units
from secateur._errors import InvalidInputError, ShapeError
from secateur._units import Units, check_scores, lowest, lowest_counts

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

# Few values, so that ties are common; both zeros, which are equal; a subnormal of float16 and float32 each.
TIED = st.sampled_from([-math.inf, -2.0, -1.0, -1e-40, -0.0, 0.0, 1e-40, 6e-8, 1.0, 2.0, math.inf])
ANY = st.floats(allow_nan=False, width=32)


@pytest.fixture(params=["torch", "native"], autouse=True, scope="module")
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is chosen in pure torch, and everything that can be with the native kernels."""
    library = native.library() if request.param == "native" else None
    with patch.object(native, "library", return_value=library):
        yield


def removed_by_sorting(scores: Tensor, k: int) -> set[int]:
    """The positions of the k lowest by a stable sort of Python numbers."""
    values = scores.tolist()
    return set(sorted(range(len(values)), key=lambda i: values[i])[:k])


def assert_lowest(scores: Tensor, k: int) -> None:
    kept = lowest(scores, k)
    assert kept.dtype == torch.bool
    assert kept.shape == scores.shape
    assert {i for i, keep in enumerate(kept.tolist()) if not keep} == removed_by_sorting(scores, k)


@given(values=st.lists(st.one_of(TIED, ANY), max_size=40), share=st.floats(0, 1), dtype=st.sampled_from(DTYPES))
def test_lowest_removes_what_a_stable_sort_puts_first(values: list[float], share: float, dtype: torch.dtype) -> None:
    scores = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert_lowest(scores, round(share * len(values)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0, 1, 500, 999, 1000])
def test_lowest_is_exact_for_random_bit_patterns(dtype: torch.dtype, k: int) -> None:
    # every exponent and both signs are equally likely
    bits = torch.randint(-(2**63), 2**63 - 1, (4000,))
    scores = bits.view(dtype)
    assert_lowest(scores[~scores.isnan()][:1000], k)


def test_lowest_is_exact_when_scores_differ_in_the_last_bit_only() -> None:
    for dtype, integer in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        one = torch.ones(1, dtype=dtype).view(integer)
        scores = (one + torch.randperm(300).to(integer)).view(dtype)
        for k in (1, 150, 299):
            assert_lowest(scores, k)


@pytest.mark.parametrize("few", [1, 5])
@given(values=st.lists(st.one_of(TIED, ANY), min_size=2, max_size=60), share=st.floats(0, 1))
def test_lowest_is_exact_however_small_the_sample(few: int, values: list[float], share: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_units, "_FEW", few)
        assert_lowest(torch.tensor(values), round(share * len(values)))


@pytest.mark.parametrize("bounds", [(2.0, 3.0), (7.0, 8.0), (5.0, 5.0), (-math.inf, 2.0), (9.0, math.inf)])
def test_lowest_is_exact_when_the_sample_misleads(bounds: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    right = _units._bounds
    answers = [bounds]
    monkeypatch.setattr(_units, "_bounds", lambda *given: answers.pop() if answers else right(*given))
    assert_lowest(torch.tensor([5.0, 9.0, 1.0, 5.0, 5.0, 3.0, 7.0, 5.0, 2.0]), 4)


@pytest.mark.parametrize("kinds", [1, 2, 3, 1000])
@pytest.mark.parametrize("share", [0.0001, 0.3, 1 / 3, 0.5, 0.9999])
def test_lowest_is_exact_for_many_scores_of_few_kinds(kinds: int, share: float) -> None:
    scores = torch.randint(kinds, (300_000,)).float() / 8
    k = round(share * len(scores))
    order = scores.sort(stable=True).indices
    assert torch.equal(lowest(scores, k), torch.ones_like(scores, dtype=torch.bool).index_fill_(0, order[:k], False))


def test_lowest_takes_the_first_of_equal_scores() -> None:
    assert lowest(torch.tensor([1.0, 0.0, -0.0, 0.0, -0.0]), 3).tolist() == [True, False, False, False, True]


def test_lowest_leaves_scores_alone() -> None:
    scores = torch.tensor([0.3, -0.0, -1.0], requires_grad=True)
    before, version = scores.detach().view(torch.int32).clone(), scores._version
    kept = lowest(scores, 2)
    assert not kept.requires_grad
    assert torch.equal(scores.detach().view(torch.int32), before)
    assert scores._version == version


@pytest.mark.parametrize("k", [0, 2, 5])
def test_lowest_does_not_mind_strides(k: int) -> None:
    base = torch.tensor([5.0, 0.0, 4.0, 0.0, 3.0, 0.0, 4.0, 0.0, 1.0])
    assert_lowest(base[::2], k)
    assert_lowest(torch.tensor(2.0).expand(5), k)


def test_lowest_refuses_nan_by_name() -> None:
    scores = torch.tensor([1.0, math.nan, -math.inf, math.nan])
    with pytest.raises(InvalidInputError, match=r"'fc1\.weight': some are NaN\.\n  nan: 2 of 4"):
        lowest(scores, 1, name="fc1.weight")


@pytest.mark.parametrize("k", [-1, 4])
def test_lowest_refuses_a_count_out_of_range(k: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"cannot remove {k} units of 'fc1\.weight'\.\n  units: 3"):
        lowest(torch.rand(3), k, name="fc1.weight")


@given(
    values=st.lists(st.lists(st.one_of(TIED, ANY), max_size=12), min_size=1, max_size=5),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=5, max_size=5),
    share=st.floats(0, 1),
)
def test_lowest_counts_are_those_of_one_sort_over_all(
    values: list[list[float]], dtypes: list[torch.dtype], share: float
) -> None:
    tensors = [torch.tensor(v, dtype=torch.float64).to(dtype) for v, dtype in zip(values, dtypes, strict=False)]
    owners = [(score, i) for i, tensor in enumerate(tensors) for score in tensor.tolist()]
    k = round(share * len(owners))
    removed = [i for _, i in sorted(owners, key=lambda owner: owner[0])[:k]]
    assert lowest_counts(tensors, k) == [removed.count(i) for i in range(len(tensors))]


def test_lowest_counts_add_up_over_large_and_small_tensors() -> None:
    tensors = [torch.randn(n) for n in (200_000, 1, 0, 3000, 70_000)]
    k = 150_000
    threshold = torch.cat(tensors).sort().values[k - 1]
    assert lowest_counts(tensors, k) == [int((tensor <= threshold).sum()) for tensor in tensors]


def test_search_leaves_the_global_random_state_alone() -> None:
    scores = torch.rand(5000)
    state = torch.get_rng_state()
    lowest(scores, 2000)
    assert torch.equal(torch.get_rng_state(), state)


def test_check_scores_names_the_tensor_with_nan() -> None:
    scores = {"a": torch.tensor([math.inf, -math.inf]), "b": torch.empty(0), "c": torch.full((2, 3), math.nan)}
    with pytest.raises(InvalidInputError, match=r"'c': some are NaN\.\n  nan: 6 of 6"):
        check_scores(scores)
    check_scores({"a": scores["a"], "b": scores["b"]})


def test_units_count_themselves() -> None:
    assert Units(torch.rand(4), torch.Size([4, 3]), 3).num_units == 4
    assert Units(torch.rand(0), torch.Size([0, 3]), 3).num_units == 0
    assert Units(torch.rand(2), torch.Size([4, 3]), 8).num_units == 2  # of which one is smaller


@pytest.mark.parametrize(("scores", "size"), [(torch.rand(4), 2), (torch.rand(13), 1), (torch.rand(2, 2), 3)])
def test_units_refuse_scores_that_do_not_make_up_the_shape(scores: Tensor, size: int) -> None:
    with pytest.raises(ShapeError, match=r"1-D, one for each unit.*\n.*shape: \(4, 3\)    unit size: "):
        Units(scores, torch.Size([4, 3]), size)


def test_units_refuse_scores_that_are_not_floats() -> None:
    with pytest.raises(InvalidInputError, match=r"floating-point numbers\.\n  dtype: torch\.int64"):
        Units(torch.arange(4), torch.Size([4]))
