"""Layers with groups of channels, against the layer's own forward on inputs cut by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secateur import ShapeError, grow_, resize_, transaction
from secateur.surgery import Selection
from secateur.surgery.groups import kept_groups


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_groups_keep_equally_many_channels_or_go(groups: int, width: int, data: st.DataObject) -> None:
    keep = sorted(data.draw(st.sets(st.integers(0, groups * width - 1), min_size=1)))
    counts = [sum(channel // width == group for channel in keep) for group in range(groups)]
    left = [count for count in counts if count]
    selection = Selection(0, groups * width, torch.tensor(keep))
    if groups == 1 or len(set(left)) == 1:
        assert kept_groups(selection, groups) == len(left)
    else:
        with pytest.raises(ShapeError, match="same number of channels, or go as a whole"):
            kept_groups(selection, groups)


@pytest.mark.parametrize(("num_new", "expected"), [(3, 3), (6, 4), (2, None)])
def test_new_channels_come_as_whole_groups(num_new: int, expected: int | None) -> None:
    selection = Selection(0, 6, torch.arange(6), num_new)
    if expected is None:
        with pytest.raises(ShapeError, match="new: 2"):
            kept_groups(selection, 2)
    else:
        assert kept_groups(selection, 2) == expected


def test_nothing_happens_to_groups_when_nothing_happens_to_channels() -> None:
    assert kept_groups(None, 3) == 3


def cut(module: nn.Module, outputs: list[int], weight_dims: dict[int, list[int]] | None = None) -> None:
    with transaction(module) as t:
        for dim, keep in (weight_dims or {0: outputs}).items():
            t.resize("weight", dim=dim, keep=keep)
        t.resize("bias", dim=0, keep=outputs)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_depthwise_convolution_stays_depthwise(kind: type[nn.Conv2d]) -> None:
    conv = kind(6, 6, 3, groups=6)
    x = torch.randn(2, 6, *[4] * (conv.weight.dim() - 2))
    expected = conv(x)[:, [0, 2, 5]]
    cut(conv, [0, 2, 5])
    assert (conv.in_channels, conv.out_channels, conv.groups) == (3, 3, 3)
    torch.testing.assert_close(conv(x[:, [0, 2, 5]]), expected)


def test_depthwise_convolution_with_multiplier_loses_whole_channels() -> None:
    conv = nn.Conv2d(3, 6, 3, groups=3)
    x = torch.randn(2, 3, 4, 4)
    expected = conv(x)[:, [0, 1, 4, 5]]
    cut(conv, [0, 1, 4, 5])
    assert (conv.in_channels, conv.out_channels, conv.groups) == (2, 4, 2)
    torch.testing.assert_close(conv(x[:, [0, 2]]), expected)


def test_grouped_convolution_keeps_equally_many_of_each_group() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 4, 4)
    expected = conv(x)[:, [0, 2, 4, 5]]
    cut(conv, [0, 2, 4, 5])
    assert (conv.in_channels, conv.out_channels, conv.groups) == (4, 4, 2)
    torch.testing.assert_close(conv(x), expected)


def test_grouped_convolution_loses_a_whole_group() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 4, 4)
    expected = conv(x)[:, 3:]
    cut(conv, [3, 4, 5])
    assert (conv.in_channels, conv.out_channels, conv.groups) == (2, 3, 1)
    torch.testing.assert_close(conv(x[:, 2:]), expected)


def test_grouped_convolution_loses_inputs_of_each_group() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 4, 4)
    x[:, [0, 2]] = 0
    expected = conv(x)
    resize_(conv, "weight", dim=1, keep=[1])
    assert (conv.in_channels, conv.groups) == (2, 2)
    torch.testing.assert_close(conv(x[:, [1, 3]]), expected)


@pytest.mark.parametrize("keep", [[0, 1, 3], [0, 1, 2, 3]])
def test_grouped_convolution_refuses_unequal_groups(keep: list[int]) -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)
    with pytest.raises(ShapeError, match="cannot resize 'Conv2d': every group must keep the same number"):
        cut(conv, keep)
    assert conv.weight.shape == (6, 2, 3, 3)
    assert conv.groups == 2


def test_transposed_convolution_loses_whole_groups() -> None:
    conv = nn.ConvTranspose2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 4, 4)
    expected = conv(x)[:, 3:]
    cut(conv, [3, 4, 5], {0: [2, 3]})
    assert (conv.in_channels, conv.out_channels, conv.groups) == (2, 3, 1)
    torch.testing.assert_close(conv(x[:, 2:]), expected)


def test_transposed_convolution_loses_outputs_of_each_group() -> None:
    conv = nn.ConvTranspose2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 4, 4)
    expected = conv(x)[:, [0, 2, 3, 5]]
    cut(conv, [0, 2, 3, 5], {1: [0, 2]})
    assert (conv.in_channels, conv.out_channels, conv.groups) == (4, 4, 2)
    torch.testing.assert_close(conv(x), expected)


def test_depthwise_convolution_grows_by_whole_groups() -> None:
    conv = nn.Conv2d(3, 3, 3, groups=3)
    x = torch.randn(2, 5, 4, 4)
    expected = conv(x[:, :3])
    with transaction(conv) as t:
        t.grow("weight", dim=0, size=5)
        t.grow("bias", dim=0, size=5)
    assert (conv.in_channels, conv.out_channels, conv.groups) == (5, 5, 5)
    torch.testing.assert_close(conv(x)[:, :3], expected)


def test_group_norm_keeps_whole_groups() -> None:
    norm = nn.GroupNorm(3, 6)
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1.0, 7.0))
    x = torch.randn(2, 6, 4)
    expected = norm(x)[:, 2:]
    cut(norm, [2, 3, 4, 5])
    assert (norm.num_channels, norm.num_groups) == (4, 2)
    torch.testing.assert_close(norm(x[:, 2:]), expected)


def test_group_norm_keeps_equally_many_of_each_group() -> None:
    norm = nn.GroupNorm(3, 6)
    cut(norm, [0, 2, 5])
    assert (norm.num_channels, norm.num_groups) == (3, 3)


def test_group_norm_refuses_to_regroup() -> None:
    norm = nn.GroupNorm(2, 6)
    with pytest.raises(ShapeError, match="cannot resize 'GroupNorm': every group"):
        cut(norm, [0, 1, 2, 3])
    assert (norm.num_channels, norm.num_groups) == (6, 2)


def test_groups_follow_when_weight_and_bias_come_one_after_the_other() -> None:
    conv = nn.Conv2d(4, 12, 1, groups=4)
    resize_(conv, "weight", dim=0, keep=range(9))
    assert conv.groups == 3
    resize_(conv, "bias", dim=0, keep=range(9))
    assert (conv.in_channels, conv.out_channels, conv.groups) == (3, 9, 3)


def test_channels_of_a_group_norm_grow_by_whole_groups() -> None:
    norm = nn.GroupNorm(2, 6)
    grow_(norm, "weight", dim=0, size=9, init=nn.init.ones_)
    grow_(norm, "bias", dim=0, size=9)
    assert (norm.num_channels, norm.num_groups) == (9, 3)


def test_channels_that_grow_inside_each_group_leave_the_number_of_groups() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)
    x = torch.randn(2, 4, 5, 5)
    expected = conv(x)
    with transaction(conv) as t:
        t.grow("weight", dim=0, size=8, at=[3, 7])
        t.grow("bias", dim=0, size=8, at=[3, 7])
    assert (conv.in_channels, conv.out_channels, conv.groups) == (4, 8, 2)
    torch.testing.assert_close(conv(x)[:, [0, 1, 2, 4, 5, 6]], expected)


def test_channels_that_grow_inside_one_group_only_are_refused() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2, bias=False)
    with pytest.raises(ShapeError, match="every group must keep the same number of channels"):
        grow_(conv, "weight", dim=0, size=8, at=[3, 4])
    assert conv.weight.shape[0] == 6
