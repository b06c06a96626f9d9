"""Small models, one for each way in which networks are put together, with the number of units that each must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Structure:
    """One kind of model.

    Args:
        make: Makes the model.
        inputs: Shapes of its inputs; a tensor is passed as it is.
        units: Number of units that touch a parameter.
        exact: Of these, how many are exact: none of the model's ops mixes positions that depend on them.
        why: What the reasons for which parts of parameters stay must contain.
        not_zeroed: Parameters that the zeroed model leaves alone, by parts of their names.
        trains: Whether gradients flow through it at all.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    units: int
    exact: int
    why: tuple[str, ...] = ()
    not_zeroed: tuple[str, ...] = ()
    trains: bool = True


STRUCTURES: dict[str, Structure] = {}

IMAGE = (2, 3, 6, 6)
TOKENS = (2, 5, 6)
FEATURES = (4, 6)


def structure(
    *inputs: Any,
    units: int,
    exact: int | None = None,
    why: tuple[str, ...] = (),
    not_zeroed: tuple[str, ...] = (),
    trains: bool = True,
    table: dict[str, Structure] = STRUCTURES,
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a model; all units are exact unless a number is given."""

    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        all_exact = units if exact is None else exact
        table[make.__name__] = Structure(make, inputs, units, all_exact, why, not_zeroed, trains)
        return make

    return register


class Net(nn.Module):
    """A model from its parts and the code of its forward."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.code = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.code(self, *inputs)


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, **options)


def raw(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


# ---- convolutions


@structure(IMAGE, units=8 + 6)
def chain() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6), nn.ReLU(), conv(6, 4))


@structure(IMAGE, units=8 + 5)
def residual() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.inside(self.outside(x).relu()))

    return Net(forward, first=conv(3, 8), outside=conv(8, 5), inside=conv(5, 8), last=conv(8, 4))


@structure(IMAGE, units=5, why=("it is an input of the model",))
def residual_with_the_input() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(x + self.inside(self.outside(x).relu()))

    return Net(forward, outside=conv(3, 5), inside=conv(5, 3), last=conv(3, 4))


@structure(IMAGE, units=4 + 5)
def concat() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.other(x).relu()], 1))

    return Net(forward, one=conv(3, 4), other=conv(3, 5), last=conv(9, 4))


@structure(IMAGE, units=9)
def concat_of_misaligned_residuals() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one = torch.cat([self.a(x), self.b(x)], 1)
        return self.last(one + torch.cat([self.c(x), self.d(x)], 1))

    return Net(forward, a=conv(3, 4), b=conv(3, 5), c=conv(3, 6), d=conv(3, 3), last=conv(9, 4))


@structure(IMAGE, units=4)
def chunk() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.first(x).chunk(2, 1)
        return self.last(one * other)

    return Net(forward, first=conv(3, 8), last=conv(4, 4))


@structure(IMAGE, units=0, why=("aten.split cuts it at sizes that are written in the code",))
def chunk_with_a_remainder() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, two, three = self.first(x).chunk(3, 1)
        return self.last(torch.cat([one * two, three], 1))

    return Net(forward, first=conv(3, 8), last=conv(5, 4))


@structure(IMAGE, units=0, why=("aten.split_with_sizes cuts it at sizes that are written in the code",))
def split_at_literals() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.first(x).split([3, 5], 1)
        return self.last(one.mean(1, keepdim=True) * other)

    return Net(forward, first=conv(3, 8), last=conv(5, 4))


@structure(IMAGE, units=3 + 5, exact=5)
def split_unequally() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.first(x).split([self.left, self.right], 1)
        return self.last(one.mean(1, keepdim=True) * other)

    return Net(forward, first=conv(3, 8), last=conv(5, 4), left=3, right=5)


@structure(IMAGE, units=0, why=("a part of it is cut out at a boundary that is written in the code",))
def slice_at_literals() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x[:, :5] + x[:, 3:])

    return Net(forward, first=conv(3, 8), last=conv(5, 4))


@structure(IMAGE, units=4)
def every_other_channel() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x[:, ::2] - x[:, 1::2])

    return Net(forward, first=conv(3, 8), last=conv(4, 4))


@structure(IMAGE, units=4)
def channel_shuffle() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return self.last(x.relu())

    return Net(forward, first=conv(3, 8), last=conv(8, 4))


@structure(IMAGE, units=4)
def shufflenet_unit() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        b, c, h, w = x.shape
        return self.last(x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w))

    return Net(forward, first=conv(3, 8), branch=conv(4, 4), last=conv(8, 4))


@structure(IMAGE, units=5 + 7)
def flatten_channels_first() -> nn.Module:
    return nn.Sequential(
        conv(3, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 4)
    )


@structure(IMAGE, units=5)
def flatten_channels_last() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 3)
        return self.last(x.permute(0, 2, 3, 1).flatten(1))

    return Net(forward, first=conv(3, 5), last=nn.Linear(20, 4))


@structure(IMAGE, units=5)
def pixel_shuffle() -> nn.Module:
    return nn.Sequential(conv(3, 20), nn.PixelShuffle(2), nn.ReLU(), conv(5, 4))


@structure(IMAGE, units=5)
def pixel_unshuffle() -> nn.Module:
    return nn.Sequential(conv(3, 5), nn.PixelUnshuffle(2), nn.ReLU(), conv(20, 4))


@structure(IMAGE, units=2 + 4 + 4)
def grouped() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8, groups=2), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=2 + 4 + 6)
def grouped_to_more_channels() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 12, groups=2), nn.ReLU(), conv(12, 4))


@structure(IMAGE, units=8)
def depthwise() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8, groups=8), nn.ReLU(), conv(8, 4))


@structure(IMAGE, units=8 + 3)
def depthwise_with_multiplier() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 24, groups=8), nn.ReLU(), conv(24, 4))


@structure(IMAGE, units=2 + 4 + 3)
def grouped_transposed() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2), nn.ReLU(), conv(6, 4))


@structure(IMAGE, units=4 + 6)
def unet_with_interpolate() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        skip = self.down(x)
        up = F.interpolate(self.middle(F.avg_pool2d(skip, 2)), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([up, skip], 1))

    return Net(forward, down=conv(3, 4), middle=conv(4, 6), last=conv(10, 4))


@structure(IMAGE, units=4 + 6 + 5)
def unet_with_transposed_convolution() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.last(torch.cat([self.up(self.middle(F.max_pool2d(skip, 2))), skip], 1))

    up = nn.ConvTranspose2d(6, 5, 2, stride=2)
    return Net(forward, down=conv(3, 4), middle=conv(4, 6), up=up, last=conv(9, 4))


@structure((2, 3, 9), units=6 + 5)
def one_dimension() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 5, 2), nn.Conv1d(5, 4, 1)
    )


@structure((2, 3, 4, 4, 4), units=6 + 5)
def three_dimensions() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 6, 3),
        nn.BatchNorm3d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(2),
        nn.Conv3d(6, 5, 2),
        nn.Conv3d(5, 4, 1),
    )


@structure(IMAGE, units=4, why=("stay",))
def zero_padded_shortcut() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.wide(x) + F.pad(x, (0, 0, 0, 0, 2, 2)))

    return Net(forward, first=conv(3, 4), wide=conv(4, 8), last=conv(8, 4))


@structure(IMAGE, units=8)
def stack_and_sum() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(torch.stack([self.one(x), self.other(x)]).sum(0))

    return Net(forward, one=conv(3, 8), other=conv(3, 8), last=conv(8, 4))


@structure(IMAGE, units=8 + 3)
def squeeze_and_excite() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        gate = self.excite(self.squeeze(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
        return self.last(x * gate)

    return Net(forward, first=conv(3, 8), squeeze=conv(8, 3, 1), excite=conv(3, 8, 1), last=conv(8, 4))


@structure(IMAGE, units=8, exact=0)
def spatial_gate() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.last(x * self.gate(pooled).sigmoid())

    return Net(forward, first=conv(3, 8), gate=conv(2, 1), last=conv(8, 4))


@structure(IMAGE, units=8 + 6)
def channels_in_the_last_place() -> nn.Module:
    net = nn.Sequential(
        conv(3, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(3), conv(8, 6), nn.AdaptiveAvgPool2d(1), conv(6, 4, 1)
    )
    return net.to(memory_format=torch.channels_last)


# ---- norms and activations


@structure(IMAGE, units=8 + 6, exact=6)
def standardised_weights() -> nn.Module:
    def standard(x: Tensor, layer: nn.Conv2d) -> Tensor:
        weight = layer.weight
        flat = F.batch_norm(weight.reshape(1, weight.shape[0], -1), None, None, training=True)
        return F.conv2d(x, flat.reshape_as(weight), layer.bias, padding=1)

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(standard(standard(x, self.first).relu(), self.second).relu())

    return Net(forward, first=conv(3, 8), second=conv(8, 6), last=conv(6, 4))


@structure(IMAGE, units=2 + 4, exact=2)
def group_norm() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 4))


@structure(TOKENS, units=8 + 10, exact=10)
def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 4))


@structure(TOKENS, units=8 + 10, exact=10)
def rms_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.RMSNorm(8), nn.Linear(8, 10), nn.SiLU(), nn.Linear(10, 4))


@structure(IMAGE, units=8 + 6)
def prelu() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.PReLU(8), conv(8, 6), nn.PReLU(), conv(6, 4))


@structure(IMAGE, units=8)
def batch_norm_without_affine() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.BatchNorm2d(8, affine=False), conv(8, 4))


@structure(IMAGE, units=8)
def frozen_batch_norm_by_hand() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        scale = self.weight * (self.variance + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return self.last(self.first(x) * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1))

    buffers = {"weight": torch.rand(8), "bias": torch.randn(8), "mean": torch.randn(8), "variance": torch.rand(8)}
    return Net(forward, first=conv(3, 8), last=conv(8, 4), **buffers)


@structure(IMAGE, units=8)
def buffer_as_scale() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.first(x) * self.scale[:, None, None])

    return Net(forward, first=conv(3, 8), last=conv(8, 4), scale=torch.randn(8))


@structure(FEATURES, units=8, not_zeroed=("original1",))
def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4))


@structure(FEATURES, units=8)
def spectral_norm() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)).eval(), nn.ReLU(), nn.Linear(8, 4))


@structure(IMAGE, units=8)
def in_place_ops() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.other(x)
        y += x
        y.mul_(self.scale.view(-1, 1, 1))
        return self.last(y.sub_(0.5).relu_())

    return Net(forward, first=conv(3, 8), other=conv(8, 8), scale=torch.randn(8), last=conv(8, 4))


@structure(IMAGE, units=4)
def in_place_slice_writes() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        y[:, ::2] += self.part(x)
        y[:, :, 1:3] = 0.5
        return self.last(y)

    return Net(forward, first=conv(3, 8), part=conv(3, 4), last=conv(8, 4))


@structure(IMAGE, units=8, trains=False)
def results_put_where_told() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.one(x), self.other(x)
        room = torch.empty_like(one)
        torch.add(one, other, out=room)
        torch.mul(room, 0.5, out=other)
        return self.last(other)

    return Net(forward, one=conv(3, 8), other=conv(3, 8), last=conv(8, 4))


# ---- linear layers, embeddings, raw weights


@structure(FEATURES, units=5)
def glu() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.GLU(), nn.Linear(5, 4))


@structure(TOKENS, units=7)
def swiglu() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))

    return Net(forward, gate=nn.Linear(6, 7), up=nn.Linear(6, 7), down=nn.Linear(7, 4))


@structure(TOKENS, units=7)
def swiglu_packed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    return Net(forward, both=nn.Linear(6, 14), down=nn.Linear(7, 4))


@structure(torch.randint(0, 11, (2, 5)), units=8 + 6, why=("its positions are looked up by number",))
def tied_embedding_and_head() -> nn.Module:
    def forward(self: Any, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.down(self.up(x).relu())
        return F.linear(x, self.head.weight)

    net = Net(forward, embedding=nn.Embedding(11, 8), up=nn.Linear(8, 6), down=nn.Linear(6, 8))
    net.head = nn.Linear(8, 11, bias=False)
    net.head.weight = net.embedding.weight
    return net


@structure(FEATURES, units=8)
def module_used_twice() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.same(self.same(self.first(x)).relu()).relu())

    return Net(forward, first=nn.Linear(6, 8), same=nn.Linear(8, 8), last=nn.Linear(8, 4))


@structure(TOKENS, units=8)
def raw_scale_and_position() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.first(x) * self.scale + self.position)

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4), scale=raw(8), position=raw(1, 5, 8))


@structure(FEATURES, units=8)
def raw_weights() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.first, self.bias).tanh(), self.last)

    return Net(forward, first=raw(8, 6), bias=raw(8), last=raw(4, 8))


@structure(FEATURES, units=8, why=("its positions are looked up by number",))
def permutation_in_a_buffer() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.first(x).index_select(1, self.order))

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4), order=torch.randperm(8))


class Doubled(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return x * scale * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return gradient * scale * 2, None


@structure(FEATURES, units=8)
def custom_autograd_function() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(Doubled.apply(self.first(x), self.scale))

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4), scale=raw(8))


@structure(FEATURES, units=8)
def outputs_in_containers() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        x = self.first(x)
        return {"logits": self.last(x), "others": [None, (self.other(x), "text")]}

    return Net(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4), other=nn.Linear(8, 2))


@structure(FEATURES, units=7, why=("it is an output of the model",))
def feature_as_output() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Any:
        feature = self.first(x)
        return self.last(self.hidden(feature).relu()), feature

    return Net(forward, first=nn.Linear(6, 8), hidden=nn.Linear(8, 7), last=nn.Linear(7, 4))


@structure((12, 6), units=2 * 7)
def mixture_of_experts() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out.index_add_(0, rows, expert(x[rows]) * weight[rows, None])
        return out

    experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 6)) for _ in range(2))
    return Net(forward, router=nn.Linear(6, 2), experts=experts)


# ---- recurrent layers


def recurrent(layer: nn.RNNBase, width: int) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])

    return Net(forward, layer=layer, last=nn.Linear(width, 4))


@structure(TOKENS, units=5)
def lstm() -> nn.Module:
    return recurrent(nn.LSTM(6, 5, batch_first=True), 5)


# One number, `hidden_size`, is the width of all layers and directions: they keep the same units.


@structure(TOKENS, units=5)
def lstm_of_two_layers_and_directions() -> nn.Module:
    return recurrent(nn.LSTM(6, 5, num_layers=2, bidirectional=True), 10)


@structure(TOKENS, units=5)
def gru() -> nn.Module:
    return recurrent(nn.GRU(6, 5), 5)


@structure(TOKENS, units=5)
def gru_of_two_layers_and_directions() -> nn.Module:
    return recurrent(nn.GRU(6, 5, num_layers=2, bidirectional=True), 10)


@structure(TOKENS, units=7)
def lstm_of_packed_sequences() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return self.last(nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0])

    return Net(forward, layer=nn.LSTM(6, 7, batch_first=True), last=nn.Linear(7, 4))


@structure(TOKENS, units=5)
def lstm_cell() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0])

    return Net(forward, cell=nn.LSTMCell(6, 5), last=nn.Linear(5, 4))
