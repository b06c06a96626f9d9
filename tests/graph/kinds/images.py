"""Structures of convolutional networks."""

from __future__ import annotations

from tests.graph.generated import Value, Writer, kind
from tests.graph.kinds.layers import activated, layer, normed


def convolved(w: Writer, x: Value, outputs: int, options: str) -> Value:
    return w.put(f"{w.part(f'nn.Conv2d({x.channels}, {outputs}, {options})')}({x})", x.wide(outputs))


@kind("image")
def bottleneck(w: Writer, x: Value) -> Value:
    """Narrow, wide, back, with the shortcut added."""
    y = activated(w, normed(w, layer(w, x, w.pick(4, 6))))
    y = activated(w, normed(w, convolved(w, y, y.channels, "3, padding=1")))
    return activated(w, w.put(f"{normed(w, layer(w, y, x.channels))} + {x}", x.shape))


@kind("image")
def inverted_residual(w: Writer, x: Value) -> Value:
    wide = 2 * x.channels if x.channels < 8 else 8
    y = activated(w, normed(w, layer(w, x, wide)))
    y = activated(w, convolved(w, y, wide, f"3, padding=1, groups={wide}, bias=False"))
    return w.put(f"{layer(w, squeezed(w, y) if w.chance(0.5) else y, x.channels)} + {x}", x.shape)


@kind("image")
def grouped(w: Writer, x: Value) -> Value:
    groups = w.pick(2, 4)
    y = layer(w, x, w.pick(8, 12))
    outputs = w.pick(8, 12)
    if w.chance(0.3):
        each = outputs // groups
        weight = w.raw(outputs, y.channels // groups, 3, 3)
        number = w.number(groups)
        return w.put(f"F.conv2d({y}, {weight}, padding=1, groups={number})", x.wide(each * groups))
    return activated(w, convolved(w, activated(w, y), outputs, f"3, padding=1, groups={groups}"))


@kind("image")
def depthwise(w: Writer, x: Value) -> Value:
    y = layer(w, x, w.pick(3, 4, 6))
    if w.chance(0.3):
        weight = w.raw(y.channels, 1, 3, 3)
        return w.put(f"F.conv2d({y}, {weight}, padding=1, groups={w.number(y.channels, y.width)})", y.shape)
    multiplier = w.pick(1, 1, 2)
    return convolved(w, y, multiplier * y.channels, f"3, padding=1, groups={y.channels}")


@kind("image")
def grouped_transposed(w: Writer, x: Value) -> Value:
    groups = w.pick(1, 2)
    y = layer(w, x, w.pick(4, 8))
    outputs = w.pick(4, 6)
    up = w.part(f"nn.ConvTranspose2d({y.channels}, {outputs}, 3, padding=1, groups={groups})")
    return w.put(f"{up}({y})", x.wide(outputs))


@kind("image")
def shuffled(w: Writer, x: Value) -> Value:
    """Channels in groups, dealt out."""
    groups, channels = w.pick((2, 8), (3, 12), (2, 6))
    y = layer(w, x, channels)
    if w.chance(0.25):
        return w.put(f"{w.part(f'nn.ChannelShuffle({groups})')}({y})", y.shape)
    c, h, v = w.names(3, f"{y}.shape[1:]")
    count = w.number(groups)
    z = w.line(f"{y}.view(b, {count}, {w.pick(f'{c} // {count}', '-1')}, {h}, {v}).transpose(1, 2)")
    return w.put(f"{z}.{w.pick(f'reshape(b, {c}, {h}, {v})', 'flatten(1, 2)', f'reshape(b, -1, {h}, {v})')}", y.shape)


@kind("image")
def shufflenet_unit(w: Writer, x: Value) -> Value:
    y = layer(w, x, 8)
    left, right = w.names(2, f"{y}.chunk(2, 1)")
    branch = normed(w, layer(w, activated(w, layer(w, Value(right, x.wide(4)), w.size())), 4))
    z = w.line(f"torch.cat([{left}, {branch}], 1)")
    c, h, v = w.names(3, f"{z}.shape[1:]")
    return w.put(f"{z}.view(b, 2, {c} // 2, {h}, {v}).transpose(1, 2).reshape(b, {c}, {h}, {v})", x.wide(8))


@kind("image")
def pixels_and_back(w: Writer, x: Value) -> Value:
    """Channels become pixels, or the other way round, and back."""
    if w.chance(0.5):
        up = layer(w, x, 4 * w.pick(3, 4))
        big = w.put(f"F.pixel_shuffle({up}, 2)", (up.channels // 4, *(2 * n for n in x.space)))
        return w.put(f"F.max_pool2d({activated(w, big)}, 2)", x.wide(big.channels))
    small = w.put(f"{w.part('nn.PixelUnshuffle(2)')}({x})", (4 * x.channels, *(n // 2 for n in x.space)))
    y = layer(w, small, 4 * w.pick(3, 4))
    return w.put(f"{w.part('nn.PixelShuffle(2)')}({y})", x.wide(y.channels // 4))


@kind("image")
def unet(w: Writer, x: Value) -> Value:
    small = x.wide(x.channels)[:1] + tuple(n // 2 for n in x.space)
    pool = w.pick("F.max_pool2d({}, 2)", "F.avg_pool2d({}, 2)", "{}[:, :, ::2, 1::2]")
    y = activated(w, layer(w, w.put(pool.format(x), small), w.size()))
    if w.chance(0.5):
        up = w.part(f"nn.ConvTranspose2d({y.channels}, {w.pick(4, 6)}, 2, stride=2)")
        channels = int(w.parts[-1].split(", ")[1])
        y = w.put(f"{up}({y})", x.wide(channels))
    else:
        mode = w.pick('"nearest"', '"bilinear"')
        size = w.pick("scale_factor=2", f"size={x}.shape[2:]", f"size={x.space}")
        y = w.put(f"F.interpolate({y}, {size}, mode={mode})", x.wide(y.channels))
    return layer(w, w.put(f"torch.cat([{x}, {y}], 1)", x.wide(x.channels + y.channels)), w.size())


def squeezed(w: Writer, x: Value) -> Value:
    """Squeeze and excite."""
    inside = w.pick(3, 4)
    if w.chance(0.5):
        mean = Value(w.line(f"F.adaptive_avg_pool2d({x}, 1)"), (x.channels, 1, 1))
        gate = w.line(f"{w.part(f'nn.Conv2d({x.channels}, {inside}, 1)')}({mean}).relu()")
        return w.put(f"{x} * torch.sigmoid({w.part(f'nn.Conv2d({inside}, {x.channels}, 1)')}({gate}))", x.shape)
    mean = Value(w.line(f"{x}.mean((2, 3))"), (x.channels,))
    gate = layer(w, activated(w, layer(w, mean, inside)), x.channels)
    shape = w.pick("[:, :, None, None]", f".view(b, {w.number(x.channels, x.width, '-1')}, 1, 1)")
    return w.put(f"{x} * F.hardsigmoid({gate}){shape}", x.shape)


@kind("image")
def squeeze_and_excite(w: Writer, x: Value) -> Value:
    return squeezed(w, x)


@kind("image")
def spatial_gate(w: Writer, x: Value) -> Value:
    pooled = w.line(f"torch.cat([{x}.mean(1, keepdim=True), {x}.amax(1, keepdim=True)], 1)")
    return w.put(f"{x} * {w.part('nn.Conv2d(2, 1, 3, padding=1)')}({pooled}).sigmoid()", x.shape)


@kind("image")
def global_context(w: Writer, x: Value) -> Value:
    """A weighted mean over the image, added everywhere."""
    weights = w.line(f"{w.part(f'nn.Conv2d({x.channels}, 1, 1)')}({x}).view(b, 1, -1).softmax(2)")
    context = w.put(f"({x}.view(b, {x.width}, -1) @ {weights}.transpose(1, 2))[..., None]", (x.channels, 1, 1))
    y = w.line(f"{w.part(f'nn.Conv2d({x.channels}, 4, 1)')}({context})")
    return w.put(f"{x} + {w.part(f'nn.Conv2d(4, {x.channels}, 1)')}(F.relu({y}))", x.shape)


@kind("image")
def inception(w: Writer, x: Value) -> Value:
    """Branches of several sorts."""
    pool = w.put(f"F.avg_pool2d({x}, 3, 1, 1)", x.shape)
    branches = [layer(w, x, 3), activated(w, layer(w, pool, 4)), convolved(w, x, 4, "(1, 3), padding=(0, 1)")]
    return w.put(f"torch.cat([{', '.join(map(str, branches))}], 1)", x.wide(11))


@kind("image")
def shortcut_of_pooled_and_padded(w: Writer, x: Value) -> Value:
    """Half the size, twice the channels, the new ones zero."""
    small = (2 * x.channels, *(n // 2 for n in x.space))
    if min(small[1:]) < 2 or small[0] > 16:
        return layer(w, x, w.size())
    down = w.line(f"{w.part(f'nn.Conv2d({x.channels}, {small[0]}, 3, stride=2, padding=1)')}({x})")
    pooled = w.line(f"F.avg_pool2d({x}, 2)")
    filled = w.pick(f"F.pad({pooled}, (0, 0, 0, 0, 0, {down}.shape[1] - {pooled}.shape[1]))",
                    f"torch.cat([{pooled}, torch.zeros_like({pooled})], 1)",
                    f"torch.cat([{pooled}, {pooled}.new_zeros({pooled}.shape)], dim=1)")  # fmt: skip
    return w.put(f"{down} + {filled}", small)


@kind("image")
def convnext(w: Writer, x: Value) -> Value:
    y = w.line(f"{w.part(f'nn.Conv2d({x.channels}, {x.channels}, 3, padding=1, groups={x.channels})')}({x})")
    inside = w.size()
    parts = [f"nn.LayerNorm({x.channels})", f"nn.Linear({x.channels}, {inside})", f"nn.Linear({inside}, {x.channels})"]
    norm, up, down = (w.part(part) for part in parts)
    z = w.line(f"{down}(F.gelu({up}({norm}({y}.permute(0, 2, 3, 1))))) * {w.raw(x.channels)}")
    return w.put(f"{x} + {z}.permute(0, 3, 1, 2)", x.shape)


@kind("image")
def other_dimensions(w: Writer, x: Value) -> Value:
    """Conv3d over a stack, or Conv1d over the pixels in a row."""
    outputs = w.size()
    if w.chance(0.5):
        volume = w.line(f"torch.stack([{x}, {x}.flip(3)], 2)")
        return w.put(
            f"{w.part(f'nn.Conv3d({x.channels}, {outputs}, (2, 1, 1))')}({volume}).squeeze(2)", x.wide(outputs)
        )
    row = w.line(f"{w.part(f'nn.Conv1d({x.channels}, {outputs}, 3, padding=1)')}({x}.flatten(2))")
    return w.put(f"{row}.{w.pick(f'unflatten(2, {x.shape[1:]})', f'view(b, -1, *{x}.shape[2:])')}", x.wide(outputs))


@kind("image")
def non_local(w: Writer, x: Value) -> Value:
    """Attention of all pixels to all."""
    inside = w.pick(3, 4)
    query, key, value = (w.line(f"{layer(w, x, inside)}.flatten(2)") for _ in range(3))
    weights = w.line(f"({query}.transpose(1, 2) @ {key}).softmax(-1)")
    y = w.put(f"({value} @ {weights}.transpose(1, 2)).view(b, -1, {x.space[0]}, {x.space[1]})", x.wide(inside))
    return w.put(f"{x} + {layer(w, y, x.channels)}", x.shape)


@kind("image")
def to_tokens(w: Writer, x: Value) -> Value:
    shape = (x.space[0] * x.space[1], x.channels)
    if shape[0] > 32:
        return w.put(f"F.avg_pool2d({x}, 2).flatten(2).transpose(1, 2)", (shape[0] // 4, x.channels))
    return w.put(w.pick(f"{x}.flatten(2).transpose(1, 2)", f"{x}.permute(0, 2, 3, 1).reshape(b, -1, {x.width})"), shape)


@kind("image")
def to_flat(w: Writer, x: Value) -> Value:
    """Pooled, or unrolled in one of two orders."""
    if w.chance(0.4):
        ways = f"{x}.mean((2, 3))", f"F.adaptive_avg_pool2d({x}, 1).flatten(1)", f"{x}.amax(dim=(-2, -1))"
        return w.put(w.pick(*ways), (x.channels,))
    y = w.line(f"F.adaptive_avg_pool2d({x}, 2)")
    count = w.number(4 * x.channels)
    order = w.pick(
        f"{y}.flatten(1)", f"{y}.permute(0, 2, 3, 1).flatten(1)", f"{y}.reshape(b, -1)", f"{y}.reshape(-1, {count})"
    )
    return layer(w, w.put(order, (4 * x.channels,)), w.size())
