"""The product of 16 x 1 blocks: every level against the exact one, for every height of the tiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur._native import blocks
from tests.native.products import MACHINE_LEVELS, SIZES, at_an_edge, check, exact, fenced, fences, on, random_weight

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)


def kept_blocks(outputs: int, inputs: int, density: float) -> Tensor:
    """A mask of blocks, ``(groups, inputs)``; some groups have none."""
    groups = -(-outputs // blocks.GROUP)
    return (torch.rand(groups, inputs) < density) & (torch.rand(groups, 1) < 0.9)


def stored(kept: Tensor, outputs: int) -> Tensor:
    """The entries that the blocks hold."""
    return kept.repeat_interleave(blocks.GROUP, 0)[:outputs]


def bound(weight: Tensor, kept: Tensor, dtype: torch.dtype, bias: Tensor | None, relu: bool, wide: bool):
    """The product; what fills the last block is not zero, since it must not matter."""
    full = torch.ones(len(kept) * blocks.GROUP, weight.shape[1])
    full[: len(weight)] = weight
    groups, columns = kept.nonzero(as_tuple=True)
    values = full.unflatten(0, (-1, blocks.GROUP))[groups, :, columns].to(dtype)
    starts = torch.tensor([0, *kept.sum(1).cumsum(0).tolist()])
    padded = torch.zeros(len(kept) * blocks.GROUP)
    padded[: len(weight)] = torch.zeros(len(weight)) if bias is None else bias
    columns = columns.to(torch.int32 if wide else torch.int16)
    packed = blocks.Packed(values, columns, starts)
    return blocks.product(packed, weight.shape, padded.view(-1, blocks.GROUP), relu)


@LEVEL
@settings(max_examples=80)
@given(
    outputs=SIZES,
    inputs=SIZES,
    density=st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0]),
    batch=st.integers(0, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    relu=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_product_is_the_dense_one_and_writes_nothing_else(
    level, outputs, inputs, density, batch, dtype, relu, wide, seed
):
    torch.manual_seed(seed)
    kept = kept_blocks(outputs, inputs, density)
    weight = random_weight(outputs, inputs, 0.9).to(dtype).float()
    x, bias = torch.randn(batch, inputs), torch.randn(outputs)
    x = fenced(x) if seed % 2 else at_an_edge(x)
    with on(level), fences():
        y = bound(weight, kept, dtype, bias, relu, wide)(x)
    check(y, x, weight, stored(kept, outputs), bias, relu)


@LEVEL
@settings(max_examples=40)
@given(
    inputs=SIZES,
    density=st.sampled_from([0.03, 0.3, 1.0]),
    batch=st.integers(1, 20),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_inf_and_nan_reach_just_the_outputs_of_their_blocks(level, inputs, density, batch, relu, seed):
    torch.manual_seed(seed)
    kept, weight = kept_blocks(33, inputs, density), random_weight(33, inputs, 0.9)
    x = torch.randn(batch, inputs)
    for value in (float("inf"), float("-inf"), float("nan")):
        x[torch.randint(batch, ()), torch.randint(inputs, ())] = value
    with on(level):
        y = bound(weight, kept, torch.float32, None, relu, False)(fenced(x))
    wanted = exact(x, weight, stored(kept, 33), None, relu)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())
    assert torch.equal(y[y.isinf()].double(), wanted[wanted.isinf()])


@LEVEL
@pytest.mark.parametrize(("inputs", "wide"), [(65536, False), (65536, True), (70001, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_inputs_may_be_many(level, inputs, wide, batch):
    kept, weight = kept_blocks(17, inputs, 0.01), random_weight(17, inputs, 1.0)
    kept[:, -1] = True
    x = fenced(torch.randn(batch, inputs))
    with on(level), fences():
        y = bound(weight, kept, torch.float32, None, False, wide)(x)
    check(y, x, weight, stored(kept, 17), None, False)


@LEVEL
@pytest.mark.parametrize("batch", [0, 1, 2, 5])
def test_a_weight_without_inputs_or_outputs_gives_the_bias_or_nothing(level, batch):
    bias = torch.tensor([1.0, -2.0, 3.0])
    empty, none = torch.zeros(1, 0, dtype=torch.bool), torch.zeros(0, 5, dtype=torch.bool)
    with on(level), fences():
        run = bound(torch.zeros(3, 0), empty, torch.float32, bias, True, False)
        assert torch.equal(run(torch.zeros(batch, 0)), bias.relu().expand(batch, 3))
        run = bound(torch.zeros(0, 5), none, torch.float32, None, False, False)
        assert run(torch.zeros(batch, 5)).shape == (batch, 0)


@LEVEL
@pytest.mark.parametrize("batch", [33, 64, 200])
@pytest.mark.parametrize("uneven", [False, True])
def test_threads_change_nothing(level, batch, uneven):
    kept, weight = kept_blocks(500, 512, 0.5), random_weight(500, 512, 1.0)
    if uneven:  # one group has nearly all blocks
        kept[:], kept[20] = torch.rand(kept.shape) < 0.02, True
        weight, kept = weight.repeat(1, 16), kept.repeat(1, 16)
    x = torch.randn(batch, weight.shape[1])  # long enough for several threads
    before = torch.get_num_threads()
    with on(level):
        run = bound(weight, kept, torch.float32, None, False, False)
        alone = run(x)
        try:
            torch.set_num_threads(3)
            together = run(x)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)


@LEVEL
def test_one_product_may_be_called_from_many_threads(level):
    kept, weight = kept_blocks(100, 50, 0.5), random_weight(100, 50, 1.0)
    inputs = [torch.randn(5, 50) for _ in range(20)]
    with on(level), ThreadPoolExecutor(4) as pool:
        run = bound(weight, kept, torch.float32, None, False, False)
        assert all(map(torch.equal, pool.map(run, inputs), map(run, inputs)))
