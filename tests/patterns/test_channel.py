from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur._errors import InvalidInputError, ShapeError
from secateur.patterns import Channel

shapes_and_dims = st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
    lambda shape: st.tuples(st.just(torch.Size(shape)), st.integers(-len(shape), len(shape) - 1))
)


@given(shapes_and_dims)
def test_channel_scores_each_slice_by_its_norm(shape_and_dim: tuple[torch.Size, int]) -> None:
    shape, dim = shape_and_dim
    score = torch.rand(shape)
    expected = [math.sqrt(sum(s * s for s in part.flatten().tolist())) for part in score.unbind(dim)]
    torch.testing.assert_close(Channel(dim).reduce(score), torch.tensor(expected))
    assert Channel(dim).unit_size(shape) == score.select(dim, 0).numel()


@given(shapes_and_dims, st.data())
def test_channel_mask_is_constant_along_each_slice(shape_and_dim: tuple[torch.Size, int], data: st.DataObject) -> None:
    shape, dim = shape_and_dim
    kept = data.draw(st.lists(st.booleans(), min_size=shape[dim], max_size=shape[dim]))
    mask = Channel(dim).expand(torch.tensor(kept), shape)
    assert mask.shape == shape
    assert mask.is_contiguous()
    assert mask._base is None or mask._base.numel() == mask.numel()
    for keep, part in zip(kept, mask.unbind(dim), strict=True):
        assert part.flatten().tolist() == [keep] * part.numel()


def test_channel_keeps_the_sign_of_scores() -> None:
    score = torch.tensor([[-3.0, -4.0], [-3.0, 4.0], [3.0, -4.0], [0.0, 0.0], [0.0, -math.inf]])
    expected = torch.tensor([-5.0, math.sqrt(7), -math.sqrt(7), 0.0, -math.inf])
    torch.testing.assert_close(Channel(0).reduce(score), expected)


def test_channel_tells_tiny_and_huge_scores_apart() -> None:
    # their squares are 0 and inf in float32
    score = torch.tensor([[1e-30, 0.0], [2e-30, 0.0], [1e30, 0.0], [2e30, 0.0]])
    torch.testing.assert_close(Channel(0).reduce(score), score[:, 0])


def test_channel_score_is_at_least_float32() -> None:
    half = torch.full((2, 3), 300.0, dtype=torch.float16)
    assert Channel(0).reduce(half).dtype == torch.float32
    torch.testing.assert_close(Channel(0).reduce(half), torch.tensor([300.0, 300.0]) * math.sqrt(3))
    assert Channel(0).reduce(half.double()).dtype == torch.float64


def test_channel_score_is_detached() -> None:
    assert not Channel(0).reduce(torch.rand(2, 3, requires_grad=True)).requires_grad


def test_channel_takes_tensors_without_entries() -> None:
    assert Channel(0).reduce(torch.rand(0, 3)).shape == (0,)
    assert Channel(1).reduce(torch.rand(0, 3)).tolist() == [0.0, 0.0, 0.0]
    assert Channel(0).expand(torch.ones(0, dtype=torch.bool), torch.Size([0, 3])).shape == (0, 3)


@pytest.mark.parametrize(("dim", "shape"), [(2, (4, 3)), (-3, (4, 3)), (0, ())])
def test_channel_refuses_a_dim_that_the_tensor_lacks(dim: int, shape: tuple[int, ...]) -> None:
    pattern, size = Channel(dim), torch.Size(shape)
    message = rf"no dim {dim}\.\n  shape: \({', '.join(map(str, shape))}\)\n  fix:"
    with pytest.raises(ShapeError, match=message):
        pattern.reduce(torch.rand(size))
    with pytest.raises(ShapeError, match=message):
        pattern.expand(torch.ones(4, dtype=torch.bool), size)
    with pytest.raises(ShapeError, match=message):
        pattern.unit_size(size)


@pytest.mark.parametrize("dim", ["0", 1.0, None, True], ids=repr)
def test_channel_refuses_a_dim_that_is_no_whole_number(dim: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"a whole number[\s\S]*pattern: Channel    dim: {dim!r}"):
        Channel(dim)


def test_channel_refuses_units_of_another_tensor() -> None:
    with pytest.raises(ShapeError, match=r"one for each unit.*\n  kept: \(3,\)    units: 4    shape: \(4, 3\)"):
        Channel(0).expand(torch.ones(3, dtype=torch.bool), torch.Size([4, 3]))
