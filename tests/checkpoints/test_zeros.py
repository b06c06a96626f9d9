"""Where zeros lie, against loops over all positions."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur import patterns
from secateur.checkpoints.zeros import BLOCKS, GROUPS, ROW_MULTIPLE, Zeros
from secateur.patterns import NM, PATTERNS, Block, Channel, Pattern


def found_in(weight: Tensor, rows: int = ROW_MULTIPLE) -> Zeros:
    """What is found when so many rows are looked at at once."""
    zeros = Zeros(tuple(weight.shape))
    for first in range(0, len(weight), rows):
        zeros.add(first, weight[first : first + rows] != 0)
    return zeros


@given(
    shape=st.tuples(st.sampled_from([1, 16, 48, 80]), st.sampled_from([1, 8, 16, 24]), st.sampled_from([1, 3])),
    seed=st.integers(0, 2**16),
    density=st.sampled_from([0.02, 0.3, 1.0]),
)
def test_counts_are_those_of_plain_loops(shape: tuple[int, int, int], seed: int, density: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.rand(shape, generator=generator) < density).float()
    found = found_in(weight)
    assert found.count == int((weight == 0).sum())
    assert found.rows.tolist() == [bool(row.any()) for row in weight]
    assert found.columns.tolist() == [bool(weight[:, column].any()) for column in range(shape[1])]
    for size in GROUPS:
        groups = itertools.product(range(shape[0]), range(0, shape[1], size), range(shape[2]))
        most = max(int(weight[row, column : column + size, place].sum()) for row, column, place in groups)
        assert found.fullest.get(size) == (None if shape[1] % size else most)
    for high, wide in BLOCKS:
        if shape[0] % high or shape[1] % wide:
            assert (high, wide) not in found.in_blocks
            continue
        corners = itertools.product(range(0, shape[0], high), range(0, shape[1], wide), range(shape[2]))
        empty = sum(not weight[row : row + high, column : column + wide, place].any() for row, column, place in corners)
        assert found.in_blocks[high, wide] == empty * high * wide


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_zeros_of_a_pattern_are_recognised(name: str) -> None:
    pattern: Pattern = PATTERNS[name]
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    units = pattern.reduce(weight.abs())
    removed = len(units) // 2
    weight *= pattern.expand(pattern.choose(units, removed), weight.shape)
    found = found_in(weight)
    if isinstance(pattern, NM):
        assert f"{pattern.n}:{pattern.m}" in found.patterns
    elif isinstance(pattern, Block):
        assert "{}x{}".format(*pattern.shape) in found.patterns
    elif isinstance(pattern, Channel):
        alive = (found.rows, found.columns)[pattern.dim]
        assert int((~alive).sum()) == 32
    else:
        assert isinstance(pattern, patterns.Unstructured)
        assert found.patterns == ()


def test_dense_weight_follows_no_pattern() -> None:
    assert found_in(torch.ones(32, 32)).patterns == ()


def test_vectors_have_zeros_and_no_channels() -> None:
    found = Zeros((5,))
    found.add(0, torch.tensor([True, False, False, True, True]))
    assert (found.count, len(found.rows), found.patterns) == (2, 0, ())
