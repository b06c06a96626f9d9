"""The format of compressed rows: how its cells are cut, what it keeps, what it gives back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from secateur.runtime.formats._cells import block_width
from secateur.runtime.formats.csr import CSR
from tests.native.plain_cells import cells_of
from tests.native.products import SIZES, check, fenced, random_weight

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
DENSITIES = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])


@given(outputs=SIZES, inputs=st.one_of(SIZES, st.just(600)), density=DENSITIES, dtype=DTYPES, seed=st.integers(0, 99))
@settings(max_examples=60)
def test_packing_cuts_a_weight_as_plain_loops_do(outputs, inputs, density, dtype, seed):
    torch.manual_seed(seed)
    weight = random_weight(outputs, inputs, density)
    width = block_width(int(torch.count_nonzero(weight)), weight.shape)
    parts, plain = CSR.pack(weight, dtype), cells_of(weight, dtype, 128, width)
    assert [part.dtype for part in parts] == [part.dtype for part in plain]
    assert all(map(torch.equal, parts, plain))
    assert torch.equal(CSR.unpack(parts, weight.shape), weight.to(dtype).float())


@given(
    outputs=SIZES,
    inputs=st.one_of(SIZES, st.just(600)),
    density=DENSITIES,
    batch=st.integers(0, 70),
    dtype=DTYPES,
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_the_product_is_that_of_the_weight_it_gives_back(outputs, inputs, density, batch, dtype, biased, seed):
    torch.manual_seed(seed)
    weight, x = random_weight(outputs, inputs, density), fenced(torch.randn(batch, inputs))
    bias = torch.randn(outputs) if biased else None
    parts = CSR.pack(weight, dtype)
    kept = CSR.unpack(parts, weight.shape)
    for relu in (False, True):
        check(CSR.bind(parts, weight.shape, bias, relu)(x), x, kept, kept != 0, bias, relu)


def test_weights_with_more_inputs_than_two_bytes_number_are_kept():
    weight = torch.zeros(3, 70_001)
    weight[torch.arange(3).repeat(40), torch.randint(70_001, (120,))] = 1.5
    weight[1, -1] = -2.0
    parts = CSR.pack(weight, torch.float32)
    assert torch.equal(CSR.unpack(parts, weight.shape), weight)
    x = torch.randn(9, 70_001)
    check(CSR.bind(parts, weight.shape, None, False)(x), x, weight, weight != 0, None, False)


@pytest.mark.parametrize(
    ("count", "shape", "width"),
    [(0, (8, 100), 2048), (1024 * 102, (1024, 1024), 192), (1024 * 512, (1024, 1024), 128), (1, (9, 9), 1088)],
)
def test_blocks_are_as_wide_as_rows_need_for_some_values_each(count, shape, width):
    assert block_width(count, torch.Size(shape)) == width


def test_a_weight_that_rounds_to_zero_is_not_kept():
    weight = torch.tensor([[1e-41, 0.0, 2.0]])
    parts = CSR.pack(weight, torch.bfloat16)
    assert torch.equal(CSR.unpack(parts, weight.shape), torch.tensor([[0.0, 0.0, 2.0]]))
    x = torch.tensor([[float("inf"), float("nan"), 3.0]])
    assert CSR.bind(parts, weight.shape, None, False)(x).item() == 6.0


def test_a_transposed_weight_and_parameters_are_packed_as_they_read():
    layer = nn.Linear(30, 32)
    turned = layer.weight.detach().t().contiguous().t()
    parts = CSR.pack(layer.weight, torch.float32)
    assert all(map(torch.equal, parts, CSR.pack(turned, torch.float32)))
    y = CSR.bind(parts, layer.weight.shape, layer.bias, False)(torch.randn(2, 30))
    assert not y.requires_grad


@pytest.mark.parametrize(
    ("weight", "why"),
    [(torch.zeros(0, 3), "no entries"), (torch.zeros(3, 0), "no entries"), (torch.ones(2, 2), "no zeros")],
    ids=["no output", "no input", "dense"],
)
def test_a_weight_that_need_not_be_kept_so_is_refused(weight, why):
    assert why in CSR.misfit(weight)
    assert CSR.misfit(torch.eye(3)) == ""
