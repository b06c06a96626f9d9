from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur._errors import InvalidInputError, ShapeError
from secateur.patterns import Block, Channel

Slices = tuple[slice, ...]

blocks_and_shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=3).flatmap(
    lambda pairs: st.tuples(
        st.just(tuple(block for block, _ in pairs)),
        st.lists(st.integers(1, 3), max_size=1).map(lambda more: torch.Size([*(size for _, size in pairs), *more])),
    )
)


def tiles(block: tuple[int, ...], shape: torch.Size) -> list[Slices]:
    """The blocks in row-major order, cut off at the end."""
    sizes = [*block, *(1 for _ in shape[len(block) :])]
    starts = itertools.product(*(range(0, whole, size) for whole, size in zip(shape, sizes, strict=True)))
    return [tuple(slice(a, a + size) for a, size in zip(start, sizes, strict=True)) for start in starts]


@given(blocks_and_shapes, st.integers(0, 2**16))
def test_block_scores_each_block_by_its_norm_as_if_it_were_whole(
    case: tuple[tuple[int, ...], torch.Size], seed: int
) -> None:
    block, shape = case
    score = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    parts = [score[tile].flatten().tolist() for tile in tiles(block, shape)]
    whole = math.prod(block)
    expected = [math.sqrt(whole * sum(s * s for s in part) / len(part)) for part in parts]
    torch.testing.assert_close(Block(block).reduce(score), torch.tensor(expected))
    assert Block(block).unit_size(shape) == whole


@given(blocks_and_shapes, st.data())
def test_block_mask_is_constant_in_each_block(case: tuple[tuple[int, ...], torch.Size], data: st.DataObject) -> None:
    block, shape = case
    where = tiles(block, shape)
    kept = data.draw(st.lists(st.booleans(), min_size=len(where), max_size=len(where)))
    mask = Block(block).expand(torch.tensor(kept), shape)
    assert mask.shape == shape
    assert mask.is_contiguous()
    for keep, tile in zip(kept, where, strict=True):
        assert mask[tile].flatten().tolist() == [keep] * mask[tile].numel()


def test_block_of_the_size_of_a_slice_is_a_channel() -> None:
    score = torch.randn(6, 5)
    torch.testing.assert_close(Block((1, 5)).reduce(score), Channel(0).reduce(score))
    torch.testing.assert_close(Block((6, 1)).reduce(score), Channel(1).reduce(score))


def test_block_keeps_the_sign_of_scores() -> None:
    score = torch.tensor([[-3.0, -4.0, 1.0], [0.0, 0.0, -2.0]])
    torch.testing.assert_close(Block((2, 2)).reduce(score), torch.tensor([-5.0, -math.sqrt(2 * 3)]))


def test_block_score_is_at_least_float32_and_detached() -> None:
    half = torch.full((2, 2), 300.0, dtype=torch.float16, requires_grad=True)
    found = Block((2, 2)).reduce(half)
    assert found.dtype == torch.float32
    assert found.item() == 600.0
    assert not found.requires_grad
    assert Block((1, 1)).reduce(half).dtype == torch.float32


def test_block_says_what_is_smaller_at_the_edge() -> None:
    assert Block((16, 1)).remainder(torch.Size([32, 7])) == ""
    assert Block((16, 4)).remainder(torch.Size([40, 7])) == (
        "size 40 of dim 0 is not divisible by 16, size 7 of dim 1 is not divisible by 4"
    )


def test_block_may_be_larger_than_the_tensor() -> None:
    assert Block((4, 4)).reduce(torch.ones(2, 3)).tolist() == [4.0]
    assert Block((4, 4)).expand(torch.tensor([False]), torch.Size([2, 3])).tolist() == [[False] * 3] * 2


def test_block_refuses_a_tensor_of_fewer_dims() -> None:
    for call in (Block((1, 2, 2)).reduce, lambda score: Block((1, 2, 2)).unit_size(score.shape)):
        with pytest.raises(
            ShapeError, match=r"Block\(shape=\(1, 2, 2\)\) does not fit: there is no dim 2\.\n  shape: \(4, 4\)"
        ):
            call(torch.rand(4, 4))


def test_block_refuses_units_of_another_tensor() -> None:
    with pytest.raises(ShapeError, match=r"one for each unit.*\n  kept: \(4,\)    units: 6"):
        Block((2, 2)).expand(torch.ones(4, dtype=torch.bool), torch.Size([4, 5]))


@pytest.mark.parametrize("shape", [(), (0, 4), (4, -1), (4.0, 4), (True, 4), 4, "44", None], ids=str)
def test_block_refuses_sizes_that_are_none(shape: object) -> None:
    with pytest.raises(InvalidInputError, match=r"tuple of positive sizes\.\n  shape: [\s\S]*Block\(\(4, 4\)\)"):
        Block(shape)


def test_block_takes_a_list_of_sizes() -> None:
    assert Block([4, 1]) == Block((4, 1))
