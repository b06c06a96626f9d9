"""Layers, activations and norms, in the ways in which they are written, and kinds that are little more than these."""

from __future__ import annotations

from tests.graph.generated import Value, Writer, kind

ANY = ("image", "tokens", "flat")


def layer(w: Writer, x: Value, outputs: int) -> Value:
    """All channels to other channels."""
    write = w.pick(*([_convolution] * 5 + IMAGE_LAYERS if x.layout == "image" else [_linear] * 5 + VECTOR_LAYERS))
    return w.put(write(w, x, outputs), x.wide(outputs))


def _convolution(w: Writer, x: Value, outputs: int) -> str:
    size = w.pick(1, 3)
    bias = w.pick("", ", bias=False")
    return f"{w.part(f'nn.Conv2d({x.channels}, {outputs}, {size}, padding={size // 2}{bias})')}({x})"


def _raw_convolution(w: Writer, x: Value, outputs: int) -> str:
    return f"F.conv2d({x}, {w.raw(outputs, x.channels, 3, 3)}, {w.raw(outputs)}, padding=1)"


def _convolution_by_linear(w: Writer, x: Value, outputs: int) -> str:
    linear = w.part(f"nn.Linear({x.channels}, {outputs})")
    return f"{linear}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"


def _convolution_by_einsum(w: Writer, x: Value, outputs: int) -> str:
    return f'torch.einsum("bchw,dc->bdhw", {x}, {w.raw(outputs, x.channels)})'


def _normed_convolution(w: Writer, x: Value, outputs: int) -> str:
    norm = w.pick("weight_norm", "spectral_norm")
    return f"{w.part(f'parametrizations.{norm}(nn.Conv2d({x.channels}, {outputs}, 1))')}({x})"


def _unrolled_convolution(w: Writer, x: Value, outputs: int) -> str:
    weight = w.raw(outputs, x.channels * 9)
    height, width = x.space
    return f"({weight} @ F.unfold({x}, 3, padding=1)).view(b, -1, {height}, {width})"


def _linear(w: Writer, x: Value, outputs: int) -> str:
    bias = w.pick("", ", bias=False")
    return f"{w.part(f'nn.Linear({x.channels}, {outputs}{bias})')}({x})"


def _raw_linear(w: Writer, x: Value, outputs: int) -> str:
    return f"F.linear({x}, {w.raw(outputs, x.channels)}, {w.raw(outputs)})"


def _matmul(w: Writer, x: Value, outputs: int) -> str:
    return f"{x} @ {w.raw(x.channels, outputs)} + {w.raw(outputs)}"


def _linear_by_einsum(w: Writer, x: Value, outputs: int) -> str:
    return f'torch.einsum("...i,oi->...o", {x}, {w.raw(outputs, x.channels)})'


def _normed_linear(w: Writer, x: Value, outputs: int) -> str:
    norm = w.pick("weight_norm", "spectral_norm")
    return f"{w.part(f'parametrizations.{norm}(nn.Linear({x.channels}, {outputs}))')}({x})"


IMAGE_LAYERS = [
    _raw_convolution, _convolution_by_linear, _convolution_by_einsum, _normed_convolution, _unrolled_convolution,
]  # fmt: skip
VECTOR_LAYERS = [_raw_linear, _matmul, _linear_by_einsum, _normed_linear]

ACTIVATIONS = (
    "F.relu({x})", "{x}.relu_()", "F.gelu({x})", "F.silu({x}, inplace=True)", "torch.tanh({x})", "F.hardswish({x})",
    "F.leaky_relu({x}, 0.1)", "F.elu({x})", "torch.sigmoid({x})", "F.softplus({x})", "{x}.clamp(min=0.0)",
    "torch.where({x} > 0, {x}, 0.5 * {x})", "{x} * torch.sigmoid({x})", "torch.exp(-{x}.square())", "torch.cos({x})",
    "self.drop({x}).relu()",
)  # fmt: skip


def activated(w: Writer, x: Value) -> Value:
    """Some function of each number. The value is no longer to be used itself, since the function may be in place."""
    function = w.pick(*ACTIVATIONS)
    if "self.drop" in function and "self.drop = nn.Dropout(0.1)" not in w.parts:
        w.parts.append("self.drop = nn.Dropout(0.1)")
    if x.dim == 1 and w.chance(0.15):
        return w.put(f"{w.part(f'nn.PReLU({x.channels})')}({x})", x.shape)
    return w.put(function.format(x=x), x.shape)


def normed(w: Writer, x: Value) -> Value:
    """One of the norms for a layout."""
    return w.put(w.pick(*NORMS[x.layout])(w, x), x.shape)


def _batch_norm(w: Writer, x: Value) -> str:
    affine = w.pick("", "", ", affine=False", ", track_running_stats=False")
    name = "nn.BatchNorm2d" if x.layout == "image" else "nn.BatchNorm1d"
    norm = w.part(f"{name}({x.channels}{affine})")
    return f"{norm}({x}.transpose(1, 2)).transpose(1, 2)" if x.layout == "tokens" else f"{norm}({x})"


def _group_norm(w: Writer, x: Value) -> str:
    groups = w.pick(*(g for g in (1, 2, 3, 4) if x.channels % g == 0))
    return f"{w.part(f'nn.GroupNorm({groups}, {x.channels})')}({x})"


def _instance_norm(w: Writer, x: Value) -> str:
    return f"{w.part(f'nn.InstanceNorm2d({x.channels}, affine={w.chance(0.5)})')}({x})"


def _channels_last_norm(w: Writer, x: Value) -> str:
    return f"{w.part(f'nn.LayerNorm({x.channels})')}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"


def _frozen_norm(w: Writer, x: Value) -> str:
    scale = w.line(
        f"{w.buffer(f'torch.rand({x.channels}) + 0.5')} * {w.buffer(f'torch.rand({x.channels}) + 0.5')}.rsqrt()"
    )
    shift = w.buffer(f"torch.randn({x.channels})")
    return f"{x} * {x.by_channel(scale)} + {x.by_channel(shift)}"


def _frozen_norm_by_view(w: Writer, x: Value) -> str:
    scale, shift = w.buffer(f"torch.rand({x.channels}) + 0.5"), w.raw(x.channels)
    return f"{x} * {scale}.view(1, -1, 1, 1) + {shift}.reshape(1, {x.width}, 1, 1)"


def _layer_norm(w: Writer, x: Value) -> str:
    affine = w.pick("", "", ", elementwise_affine=False")
    return f"{w.part(f'nn.LayerNorm({x.channels}{affine})')}({x})"


def _rms_norm(w: Writer, x: Value) -> str:
    return f"{w.part(f'nn.RMSNorm({x.channels})')}({x})"


def _rms_norm_by_hand(w: Writer, x: Value) -> str:
    return f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-6) * {w.raw(x.channels)}"


def _functional_layer_norm(w: Writer, x: Value) -> str:
    shape = w.pick(f"({w.number(x.channels, x.width)},)", f"{x}.shape[{x.dim}:]")
    return f"F.layer_norm({x}, {shape}, {w.pick('None', w.raw(x.channels))})"


def _unit_length(w: Writer, x: Value) -> str:
    return f"F.normalize({x}, dim=-1)"


NORMS = {
    "image": (_batch_norm, _group_norm, _instance_norm, _channels_last_norm, _frozen_norm, _frozen_norm_by_view),
    "tokens": (_batch_norm, _layer_norm, _rms_norm, _rms_norm_by_hand, _functional_layer_norm, _unit_length),
    "flat": (_batch_norm, _layer_norm, _rms_norm, _functional_layer_norm, _unit_length, _frozen_norm),
}


@kind(*ANY)
def chain(w: Writer, x: Value) -> Value:
    y = layer(w, x, w.size())
    if w.chance(0.5):
        y = normed(w, y)
    return activated(w, y)


@kind(*ANY)
def residual(w: Writer, x: Value) -> Value:
    y = normed(w, x) if w.chance(0.5) else x
    y = layer(w, activated(w, layer(w, y, w.size())), x.channels)
    return w.put(w.pick(f"{x} + {y}", f"{y}.add_({x})", f"torch.add({x}, {y}, alpha=0.5)"), x.shape)


@kind(*ANY)
def norm_alone(w: Writer, x: Value) -> Value:
    return normed(w, x)


@kind(*ANY)
def scale(w: Writer, x: Value) -> Value:
    """A raw scale and shift, a position for each place, or a scale from a buffer."""
    tensor = w.pick(w.raw(x.channels), w.buffer(f"torch.rand({x.channels}) + 0.5"))
    if w.chance(0.3):
        return w.put(f"{x} + {w.raw(1, *x.shape)}", x.shape)
    return w.put(f"{x} * {x.by_channel(tensor)} + {x.by_channel(w.raw(x.channels))}", x.shape)


@kind(*ANY)
def scale_from_a_size(w: Writer, x: Value) -> Value:
    """A size that becomes a value."""
    size = w.number(x.channels, x.width)
    return w.put(w.pick(f"{x} * {size} ** -0.5", f"{x} / math.sqrt({size})", f"{x} / {size}"), x.shape)


@kind(*ANY)
def assertion(w: Writer, x: Value) -> Value:
    """A comparison of sizes."""
    w.do(f"assert {x.width} == {w.number(x.channels)}")
    return layer(w, x, w.size())
