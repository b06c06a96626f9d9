"""Tensors that follow although they are not named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur import InvalidInputError, UnsupportedError, grow_, resize_, transaction

NORMS = {
    "batch norm": lambda: nn.BatchNorm2d(5),
    "without affine": lambda: nn.BatchNorm2d(5, affine=False),
    "instance norm": lambda: nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
    "synchronised": lambda: nn.SyncBatchNorm(5),
}


@pytest.mark.parametrize("kind", NORMS)
def test_running_statistics_follow(kind: str) -> None:
    norm = NORMS[kind]()
    norm.running_mean.copy_(torch.arange(5.0))
    norm.running_var.copy_(torch.arange(1.0, 6.0))
    mean, var, counter = norm.running_mean, norm.running_var, norm.num_batches_tracked
    names = ("weight", "bias") if norm.affine else ("running_mean",)
    with transaction(norm) as t:
        for name in names:
            t.resize(name, dim=0, keep=[0, 2, 4])
    assert norm.running_mean is mean
    assert norm.running_var is var
    assert norm.num_batches_tracked is counter
    assert mean.tolist() == [0.0, 2.0, 4.0]
    assert var.tolist() == [1.0, 3.0, 5.0]
    assert norm.num_features == 3


def test_running_statistics_are_cut_once_when_weight_and_bias_come_one_after_the_other() -> None:
    norm = nn.BatchNorm1d(5)
    norm.running_mean.copy_(torch.arange(5.0))
    resize_(norm, "weight", dim=0, keep=[0, 2, 4])
    assert norm.num_features == 5, "the bias has not followed yet"
    resize_(norm, "bias", dim=0, keep=[0, 2, 4])
    assert norm.running_mean.tolist() == [0.0, 2.0, 4.0]
    assert norm.num_features == 3
    assert norm.eval()(torch.zeros(2, 3)).shape == (2, 3)


def test_running_statistics_grow_with_mean_zero_and_variance_one() -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(3)
    norm.running_var.fill_(4)
    with transaction(norm) as t:
        t.grow("weight", dim=0, size=3, init=nn.init.ones_)
        t.grow("bias", dim=0, size=3)
    assert norm.running_mean.tolist() == [3.0, 3.0, 0.0]
    assert norm.running_var.tolist() == [4.0, 4.0, 1.0]
    assert norm.weight.tolist() == [1.0, 1.0, 1.0]


def test_norm_without_statistics_is_cut_like_any() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    with transaction(norm) as t:
        t.resize("weight", dim=0, keep=[1, 2])
        t.resize("bias", dim=0, keep=[1, 2])
    assert norm(torch.randn(3, 2)).shape == (3, 2)


def test_weight_and_bias_that_ask_different_things_of_the_statistics_are_refused() -> None:
    norm = nn.BatchNorm1d(4)
    with pytest.raises(InvalidInputError, match="'running_mean' is asked to change along dim 0 in two different ways"):
        _resize_both(norm, [1, 2], [0, 1])
    assert norm.weight.shape == norm.bias.shape == norm.running_mean.shape == (4,)


def _resize_both(module: nn.Module, weight: list[int], bias: list[int]) -> None:
    with transaction(module) as t:
        t.resize("weight", dim=0, keep=weight)
        t.resize("bias", dim=0, keep=bias)


class Quantizer(nn.Module):
    """What torch.ao puts beside a weight in quantization-aware training, in small."""

    def __init__(self, channels: int, ch_axis: int) -> None:
        super().__init__()
        self.ch_axis = ch_axis
        self.register_buffer("scale", torch.arange(1.0, channels + 1))
        self.register_buffer("zero_point", torch.zeros(channels, dtype=torch.int32))
        self.register_buffer("enabled", torch.ones(1))
        self.activation_post_process = nn.Module()
        self.activation_post_process.register_buffer("min_val", torch.arange(0.0, channels))


def quantized(ch_axis: int = 0) -> nn.Linear:
    layer = nn.Linear(3, 4)
    layer.weight_fake_quant = Quantizer(4 if ch_axis == 0 else 3, ch_axis)
    return layer


def test_ranges_of_fake_quantizers_follow_the_channels() -> None:
    layer = quantized()
    _resize_both(layer, [1, 3], [1, 3])
    quantizer = layer.weight_fake_quant
    assert quantizer.scale.tolist() == [2.0, 4.0]
    assert quantizer.zero_point.shape == (2,)
    assert quantizer.enabled.shape == (1,)
    assert quantizer.activation_post_process.min_val.tolist() == [1.0, 3.0]


def test_ranges_of_fake_quantizers_stay_when_another_dim_is_cut() -> None:
    layer = quantized()
    resize_(layer, "weight", dim=1, keep=[0, 1])
    assert layer.weight_fake_quant.scale.shape == (4,)


def test_fake_quantized_channels_do_not_grow() -> None:
    layer = quantized()
    with pytest.raises(UnsupportedError, match="its fake quantizer has no range for new channels"):
        grow_(layer, "weight", dim=0, size=6)
    assert layer.weight.shape == (4, 3)
