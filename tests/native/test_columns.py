"""The product of packed activations with cells: every level against the exact one, however the matrix is cut."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import secateur._native as native
from secateur import UnsupportedError
from secateur._native.columns import MOST_COLUMNS, MOST_ROWS, Matrix, product
from tests.native.plain_cells import plain_matrix
from tests.native.products import MACHINE_LEVELS, SIZES, check, exact, fenced, fences, on, random_weight

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
PANELS = st.sampled_from([1, 5, 16, 128, MOST_ROWS])
WIDTHS = st.sampled_from([1, 7, 64, 128, MOST_COLUMNS])


@LEVEL
@settings(max_examples=120)
@given(
    outputs=SIZES,
    inputs=SIZES,
    panel=PANELS,
    width=WIDTHS,
    density=st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0]),
    batch=st.integers(0, 150),
    dtype=DTYPES,
    biased=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_product_is_the_dense_one_and_writes_nothing_else(
    level, outputs, inputs, panel, width, density, batch, dtype, biased, relu, seed
):
    torch.manual_seed(seed)
    weight = random_weight(outputs, inputs, density).to(dtype).float()
    x, bias = fenced(torch.randn(batch, inputs)), fenced(torch.randn(outputs)) if biased else None
    matrix = plain_matrix(weight, dtype, panel, width, bias, relu)
    with on(level), fences():
        y = product(matrix)(x)
    check(y, x, weight, weight != 0, bias, relu)


@LEVEL
@settings(max_examples=40)
@given(
    inputs=SIZES,
    density=st.sampled_from([0.03, 0.3, 1.0]),
    batch=st.integers(1, 70),
    dtype=DTYPES,
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_inf_and_nan_reach_just_the_outputs_that_have_a_weight_for_them(
    level, inputs, density, batch, dtype, relu, seed
):
    torch.manual_seed(seed)
    weight, x = random_weight(33, inputs, density).to(dtype).float(), torch.randn(batch, inputs)
    for value in (float("inf"), float("-inf"), float("nan")):
        x[torch.randint(batch, ()), torch.randint(inputs, ())] = value
    with on(level):
        y = product(plain_matrix(weight, dtype, 16, 64, None, relu))(fenced(x))
    wanted = exact(x, weight, weight != 0, None, relu)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())
    assert torch.equal(y[y.isinf()].double(), wanted[wanted.isinf()])
    finite = wanted.isfinite()
    size = torch.where(weight != 0, x.double().abs()[:, None] * weight.double().abs(), 0.0).sum(2)
    roundings = (inputs + 6) * 2.0**-24
    assert ((y - wanted).abs()[finite] <= size[finite] * roundings / (1 - roundings)).all()


@LEVEL
def test_columns_are_found_behind_those_that_two_bytes_can_count(level):
    inputs = 70_001
    weight = torch.zeros(3, inputs)
    weight[0, [0, 32_767, 32_768, 65_535, 65_536, inputs - 1]] = torch.tensor([1.0, -2.0, 3.0, 5.0, -7.0, 11.0])
    weight[2, inputs - 1] = 1.0
    x = fenced(torch.randn(17, inputs))
    with on(level):
        y = product(plain_matrix(weight, torch.float32, 2, MOST_COLUMNS, None, False))(x)
    check(y, x, weight, weight != 0, None, False)


@LEVEL
@pytest.mark.parametrize("batch", [16, 64, 130, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_nothing(level, batch, dtype):
    weight, x = random_weight(600, 700, 0.99).to(dtype).float(), torch.randn(batch, 700)  # for several threads
    matrix = plain_matrix(weight, dtype, 128, 128, torch.randn(600), True)
    before, found = torch.get_num_threads(), []
    with on(level):
        multiplied = product(matrix)
        try:
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                with fences():
                    found.append(multiplied(x))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@LEVEL
def test_one_product_may_be_called_from_many_threads(level):
    weight = random_weight(64, 96, 0.5)
    batches = [torch.randn(rows, 96) for rows in range(1, 60)]
    with on(level):
        multiplied = product(plain_matrix(weight, torch.float32, 16, 32, None, False))
    alone = [multiplied(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, alone, pool.map(multiplied, batches)))


def test_the_dtype_of_results_does_not_depend_on_the_default():
    weight = random_weight(3, 4, 1.0)
    multiplied = product(plain_matrix(weight, torch.float32, 16, 32, None, False))
    torch.set_default_dtype(torch.float64)
    try:
        assert multiplied(torch.ones(2, 4, dtype=torch.float32)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@LEVEL
def test_too_large_activations_are_an_error_of_python(level):
    inputs = 2**50
    starts = torch.zeros(2, 2, dtype=torch.int64)
    matrix = Matrix(1, inputs, 1, inputs, 0, 0, None, None, None, None, None, starts.data_ptr())
    with on(level), pytest.raises(MemoryError, match="multiply 7 rows"):
        product(matrix)(torch.ones(7, 1))


def test_without_the_library_the_reason_is_told():
    matrix = plain_matrix(torch.ones(2, 2), torch.float32, 16, 32, None, False)
    with patch.object(native, "library", return_value=None), pytest.raises(UnsupportedError, match="native format"):
        product(matrix)
