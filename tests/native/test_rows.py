"""The product for a few rows of x: every level against the exact one, whatever the lanes hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur._native import rows
from tests.native.products import MACHINE_LEVELS, SIZES, at_an_edge, check, exact, fenced, fences, on, random_weight

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)


def lanes_of(outputs: int) -> Tensor:
    """Outputs in any order, with empty lanes anywhere among them."""
    lanes = -(-outputs // rows.GROUP) * rows.GROUP
    return torch.where((order := torch.randperm(lanes)) < outputs, order, -1).int().view(-1, rows.GROUP)


def bound(weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None, relu: bool = False):
    """The product of a weight whose entries the dtype can hold."""
    packed = rows.pack(weight, lanes_of(len(weight)))
    given = torch.zeros(len(weight)) if bias is None else bias
    of_lanes = torch.where(packed.outputs_of < 0, 0.0, given[packed.outputs_of.clamp(min=0)])
    return rows.product(packed._replace(values=packed.values.to(dtype)), weight.shape, of_lanes, relu)


@LEVEL
@settings(max_examples=60)
@given(
    outputs=SIZES,
    inputs=SIZES,
    density=st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0]),
    batch=st.integers(0, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_product_is_the_dense_one_and_writes_nothing_else(
    level, outputs, inputs, density, batch, dtype, relu, seed
):
    torch.manual_seed(seed)
    weight = random_weight(outputs, inputs, density).to(dtype).float()
    x, bias = torch.randn(batch, inputs), torch.randn(outputs)
    x = fenced(x) if seed % 2 else at_an_edge(x)
    with on(level), fences():
        y = bound(weight, dtype, bias, relu)(x)
    check(y, x, weight, weight != 0, bias, relu)


@LEVEL
@settings(max_examples=40)
@given(
    inputs=SIZES,
    density=st.sampled_from([0.03, 0.3, 1.0]),
    batch=st.integers(1, 6),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_inf_and_nan_reach_just_the_outputs_that_have_a_weight_for_them(level, inputs, density, batch, relu, seed):
    torch.manual_seed(seed)
    weight = random_weight(33, inputs, density)
    x = torch.randn(batch, inputs)
    for value in (float("inf"), float("-inf"), float("nan")):
        x[torch.randint(batch, ()), torch.randint(inputs, ())] = value
    with on(level):
        y = bound(weight, torch.float32, relu=relu)(fenced(x))
    wanted = exact(x, weight, weight != 0, None, relu)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())
    assert torch.equal(y[y.isinf()].double(), wanted[wanted.isinf()])
    finite = wanted.isfinite()
    size = torch.where(weight != 0, x.double().abs()[:, None] * weight.double().abs(), 0.0).sum(2)
    assert ((y - wanted).abs()[finite] <= (size * (inputs + 6) * 2.0**-23)[finite]).all()


@LEVEL
@pytest.mark.parametrize("inputs", [5, 63, 64, 65, 79])
def test_an_inf_at_any_place_reaches_its_output_alone(level, inputs):
    weight = torch.eye(inputs)
    with on(level):
        run = bound(weight, torch.float32)
        for place in range(inputs):
            x = torch.ones(1, inputs)
            x[0, place] = float("inf")
            assert torch.equal(run(x), x)


@LEVEL
@pytest.mark.parametrize("inputs", [65535, 65536, 70001])
def test_inputs_may_be_many(level, inputs):
    weight = random_weight(3, inputs, 0.01)
    weight[:, -1] = 1.0
    x = fenced(torch.randn(2, inputs))
    with on(level), fences():
        y = bound(weight, torch.float32)(x)
    check(y, x, weight, weight != 0, None, False)


@LEVEL
def test_a_weight_without_inputs_or_outputs_gives_the_bias_or_nothing(level):
    bias = torch.tensor([1.0, -2.0, 3.0])
    with on(level), fences():
        assert torch.equal(bound(torch.zeros(3, 0), torch.float32, bias)(torch.zeros(2, 0)), bias.expand(2, 3))
        assert torch.equal(bound(torch.zeros(3, 5), torch.float32, bias, True)(torch.ones(1, 5)), bias.relu()[None])
        assert bound(torch.zeros(0, 5), torch.float32)(torch.zeros(2, 5)).shape == (2, 0)


@LEVEL
def test_windows_lie_within_the_row_and_every_weight_has_one_slot(level):
    weight = random_weight(40, 200, 0.2)
    with on(level):
        values, indices, bases, starts, _ = rows.pack(weight, lanes_of(40))
    assert bases.min() >= 0
    assert (bases[:, None, None] + indices).max() < 200
    assert indices.max() < 64
    assert bases.max() + 64 <= 200
    assert starts.tolist() == sorted(starts.tolist())
    assert starts[-1] == len(values)
    assert torch.equal(values[values != 0].sort().values, weight[weight != 0].sort().values)


@LEVEL
def test_dense_rows_fill_all_slots(level):
    weight = torch.ones(32, 256)
    with on(level):
        values, *_ = rows.pack(weight, torch.arange(32, dtype=torch.int32).view(2, 16))
    assert values.numel() == weight.numel()


@LEVEL
def test_threads_change_nothing(level):
    weight, x = random_weight(600, 512, 0.5), torch.randn(64, 512)  # long enough for several threads
    before = torch.get_num_threads()
    with on(level), fences():
        run = bound(weight, torch.float32)
        alone = run(x)
        try:
            torch.set_num_threads(3)
            together = run(x)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)


@LEVEL
def test_one_product_may_be_called_from_many_threads(level):
    weight = random_weight(100, 50, 0.5)
    inputs = [torch.randn(5, 50) for _ in range(20)]
    with on(level), ThreadPoolExecutor(4) as pool:
        run = bound(weight, torch.float32)
        assert all(map(torch.equal, pool.map(run, inputs), map(run, inputs)))
