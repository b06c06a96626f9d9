"""More small models: other ways to write the structures of `tests.graph.structures` and `tests.graph.attentions`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.structures import FEATURES, IMAGE, TOKENS, Net, Structure, conv, raw
from tests.graph.structures import structure as any_structure

VARIANTS: dict[str, Structure] = {}

structure = partial(any_structure, table=VARIANTS)


def simple(code: Any, **parts: Any) -> nn.Module:
    """A model whose forward is one expression of the model and the input."""
    return Net(lambda self, x: code(self, x), **parts)


# ---- channels joined, cut and moved


@structure(IMAGE, units=5 + 3 + 3)
def dense_block_in_a_loop() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.cat([x, block(x).relu()], 1)
        return self.last(x)

    blocks = nn.ModuleList(conv(5 + 3 * i, 3) for i in range(2))
    return Net(forward, first=conv(3, 5), blocks=blocks, last=conv(11, 4))


@structure(IMAGE, units=4 + 3)
def channel_shuffle_of_torch() -> nn.Module:
    return nn.Sequential(conv(3, 12), nn.ChannelShuffle(4), nn.ReLU(), conv(12, 4))


@structure(IMAGE, units=5)
def pixel_shuffle_by_hand() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        x = self.first(x).view(b, -1, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, -1, 2 * h, 2 * w)
        return self.last(x.relu())

    return Net(forward, first=conv(3, 20), last=conv(5, 4))


@structure(IMAGE, units=5)
def pixels_to_channels_by_slices() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        corners = [x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.last(torch.cat(corners, 1))

    return Net(forward, first=conv(3, 5), last=conv(20, 4))


@structure(IMAGE, units=4)
def three_parts_of_one_size() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, two, three = self.first(x).split(self.width, dim=1)
        return self.last(one * two.sigmoid() + three)

    return Net(forward, first=conv(3, 12), last=conv(4, 4), width=4)


@structure(FEATURES, units=4)
def parts_by_unflatten_and_unbind() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.first(x).unflatten(1, (2, -1)).unbind(1)
        return self.last(one * other)

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(4, 4))


@structure(IMAGE, units=4)
def maxout() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        b, c, h, w = (x := self.first(x)).shape
        return self.last(x.view(b, 4, c // 4, h, w).amax(1))

    return Net(forward, first=conv(3, 16), last=conv(4, 4))


@structure(IMAGE, units=4 + 5)
def unet_that_pads() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        skip = self.down(x)
        y = F.interpolate(self.middle(F.max_pool2d(skip, 4)), scale_factor=4)
        y = F.pad(y, (0, skip.shape[3] - y.shape[3], 0, skip.shape[2] - y.shape[2]))
        return self.last(torch.cat([y, skip], dim=-3))

    return Net(forward, down=conv(3, 4), middle=conv(4, 5), last=conv(9, 4))


@structure(IMAGE, units=6)
def filled_into_zeros() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        room = torch.zeros(y.shape[0], y.shape[1], 8, 8, dtype=y.dtype)
        room[:, :, 1:7, 1:7] = y
        return self.last(room)

    return Net(forward, first=conv(3, 6), last=conv(6, 4))


@structure(IMAGE, units=8)
def masked_in_place() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        y[y < 0] = 0.0
        y.masked_fill_(y > 1, 1.0)
        return self.last(y)

    return Net(forward, first=conv(3, 8), last=conv(8, 4))


@structure(FEATURES, units=8)
def branches_weighted_by_a_softmax() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weights = self.weights.softmax(0)
        return self.last(sum(weight * branch(x) for weight, branch in zip(weights, self.branches, strict=True)))

    branches = nn.ModuleList(nn.Linear(6, 8) for _ in range(3))
    return Net(forward, weights=raw(3), branches=branches, last=nn.Linear(8, 4))


# ---- convolutions


@structure(IMAGE, units=6)
def convolution_there_and_back() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.weight, padding=1).relu()
        return F.conv_transpose2d(y, self.weight, padding=1)

    return Net(forward, weight=raw(6, 3, 3, 3))


@structure(IMAGE, units=8)
def depthwise_with_a_raw_weight() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(F.conv2d(x, self.weight, groups=x.shape[1]))

    return Net(forward, first=conv(3, 8), weight=raw(8, 1, 3, 3), last=conv(8, 4))


@structure(IMAGE, units=6)
def convolution_unrolled() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.weight @ F.unfold(self.first(x), 3, padding=1)
        return y.view(x.shape[0], -1, *x.shape[2:])

    return Net(forward, first=conv(3, 6), weight=raw(4, 54))


@structure(IMAGE, units=6 + 7 + 6)
def pointwise_by_linear() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.spatial(self.first(x)).permute(0, 2, 3, 1)
        return self.last(self.down(F.gelu(self.up(y)) * self.scale).permute(0, 3, 1, 2))

    parts = {"up": nn.Linear(6, 7), "scale": raw(7), "down": nn.Linear(7, 6)}
    return Net(forward, first=conv(3, 6), spatial=conv(6, 6, groups=6), last=conv(6, 4), **parts)


@structure((2, 5, 6), units=8)
def causal_convolution_over_time() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x).transpose(1, 2)
        y = self.over_time(y)[..., : x.shape[1]]
        return self.last(F.silu(y).transpose(1, 2))

    over_time = nn.Conv1d(8, 8, 3, groups=8, padding=2)
    return Net(forward, first=nn.Linear(6, 8), over_time=over_time, last=nn.Linear(8, 4))


@structure(IMAGE, units=8 + 3)
def squeeze_and_excite_by_linear() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        b, c, _, _ = x.size()
        gate = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid().view(b, c, 1, 1)
        return self.last(x * gate.expand_as(x))

    return Net(forward, first=conv(3, 8), squeeze=nn.Linear(8, 3), excite=nn.Linear(3, 8), last=conv(8, 4))


# ---- norms


@structure(IMAGE, units=8, exact=0)
def group_norm_in_one_group() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.GroupNorm(1, 8), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=8)
def group_norm_of_single_channels() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.GroupNorm(8, 8), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=8)
def instance_norm() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=8, exact=0)
def layer_norm_of_channels() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    return Net(forward, first=conv(3, 8), norm=nn.LayerNorm(8), last=conv(8, 4))


@structure(TOKENS, units=8, exact=0)
def layer_norm_by_hand() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return self.last(x * self.weight + self.bias)

    return Net(forward, first=nn.Linear(6, 8), weight=raw(8), bias=raw(8), last=nn.Linear(8, 4))


@structure(TOKENS, units=8, exact=0)
def functional_layer_norm() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(F.layer_norm(x, (self.width,)) * F.layer_norm(x, x.shape[-1:], self.weight))

    return Net(forward, first=nn.Linear(6, 8), weight=raw(8), last=nn.Linear(8, 4), width=8)


@structure(IMAGE, units=8, exact=0)
def global_response_norm() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        length = x.norm(dim=(1, 2), keepdim=True)
        x = self.weight * (x * (length / (length.mean(-1, keepdim=True) + 1e-6))) + x
        return self.last(x.permute(0, 3, 1, 2))

    return Net(forward, first=conv(3, 8), weight=raw(8), last=conv(8, 4))


@structure(TOKENS, units=8)
def unit_length() -> nn.Module:
    return simple(lambda self, x: self.last(F.normalize(self.first(x), dim=-1)), first=nn.Linear(6, 8),
                  last=nn.Linear(8, 4))  # fmt: skip


@structure(TOKENS, units=8)
def batch_norm_of_tokens() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).transpose(1, 2)).transpose(1, 2))

    return Net(forward, first=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), last=nn.Linear(8, 4))


@structure(IMAGE, units=8, not_zeroed=("weight_v",))
def weight_norm_by_hooks() -> nn.Module:
    return nn.Sequential(old(torch.nn.utils.weight_norm, conv(3, 8)), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=8)
def spectral_norm_by_hooks() -> nn.Module:
    return nn.Sequential(old(torch.nn.utils.spectral_norm, conv(3, 8)).eval(), nn.ReLU(), conv(8, 4))


def old(reparametrize: Any, module: nn.Module) -> nn.Module:
    """Apply one of torch's older functions, which warn that there are newer ones."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        result: nn.Module = reparametrize(module)
    return result
