"""What the zeros of a weight look like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur.runtime import pattern_of
from secateur.runtime.zeros import sparsity_of
from tests.runtime.formats.references import masked


def test_sparsity_is_the_share_of_zeros() -> None:
    assert sparsity_of(torch.tensor([[0.0, 1.0], [-0.0, 0.0]])) == 0.75
    assert sparsity_of(torch.ones(3)) == 0
    assert sparsity_of(torch.tensor([float("nan"), 0.0])) == 0.5


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_sparsity_of_nothing_is_none(shape: tuple[int, ...]) -> None:
    assert sparsity_of(torch.zeros(shape)) == 0


def rows(*texts: str) -> Tensor:
    return torch.tensor([[float(c == "x") for c in text] for text in texts])


@pytest.mark.parametrize(
    ("weight", "pattern"),
    [
        (torch.ones(4, 4), "dense"),
        (torch.zeros(0, 4), "dense"),
        (rows("x.x.", "x.x.", "x.x.", "x.x."), "4 x 1"),
        (rows("x.x.", "x.x.", "x.x.", ".xx."), "2:4"),
        (rows("xxx.", "x.x.", "x.x.", ".xx."), "unstructured"),
        (rows("x.x", "x.x", ".xx"), "unstructured"),
        (rows("xx....xx", ".xx.x..."), "2:4"),
        (masked((64, 30), 0.5, 32), "32 x 1"),
        (masked((64, 30), 0.5, 64), "64 x 1"),
        (masked((2048, 8), 0.5, 2048), "1024 x 1"),
        (masked((48, 30), 0.5, 16), "16 x 1"),
        (masked((48, 30), 0.5, 4), "4 x 1"),
        (torch.zeros(8, 8), "8 x 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(tuple(value.shape)),
)
def test_pattern_has_its_word(weight: Tensor, pattern: str) -> None:
    assert pattern_of(weight) == pattern


@given(st.sampled_from([4, 8, 16, 32, 64, 128]), st.integers(1, 3), st.integers(0, 99))
def test_blocks_are_found_at_their_size(height: int, blocks: int, seed: int) -> None:
    weight = masked((height * blocks, 40), 0.5, height, seed)
    found, _, one = pattern_of(weight).partition(" x ")
    kept, size = weight != 0, int(found)
    assert one == "1"
    assert size >= height
    assert all(torch.equal(kept[i], kept[i - i % size]) for i in range(len(kept)))


def test_pattern_does_not_depend_on_the_memory_order() -> None:
    weight = masked((40, 64), 0.4)
    assert pattern_of(weight.T) == pattern_of(weight.T.contiguous()) == "unstructured"


def test_window_of_a_convolution_counts_as_columns() -> None:
    weight = torch.ones(4, 2, 3, 3)
    weight[:, 1, 0, 2] = 0
    assert pattern_of(weight) == "4 x 1"
    weight[2, 0, 0, 0] = 0
    assert pattern_of(weight) == "unstructured"
