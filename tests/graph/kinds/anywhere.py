"""Structures that are wired in the same way whatever the layout: joins, cuts, ties, writes in place."""

from __future__ import annotations

from tests.graph.generated import Value, Writer, kind
from tests.graph.kinds.layers import ANY, activated, layer, normed


def like(w: Writer, x: Value) -> Value:
    """Another value of the same shape: one that is there already, or a new one."""
    others = [y for y in w.live if y.shape == x.shape and y is not x]
    return w.pick(*others) if others and w.chance(0.6) else layer(w, x, x.channels)


def parts_of(w: Writer, total: int) -> tuple[int, int]:
    """Two unequal parts."""
    first = w.pick(*(n for n in range(2, total - 1) if 2 * n != total))
    return first, total - first


@kind(*ANY)
def add_another(w: Writer, x: Value) -> Value:
    return w.put(w.pick("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})").format(x, like(w, x)), x.shape)


@kind(*ANY)
def concat(w: Writer, x: Value) -> Value | None:
    """Two or three values one after the other."""
    others = [y for y in w.live if y.layout == x.layout and y.space == x.space and y.channels <= 12]
    parts = [activated(w, layer(w, x, w.pick(3, 4, 5))), *(w.pick(*others) for _ in range(w.pick(1, 2)) if others)]
    w.random.shuffle(parts)
    total = sum(part.channels for part in parts)
    return w.put(f"torch.cat([{', '.join(map(str, parts))}], {w.pick(x.dim, x.dim - len(x.shape) - 1)})", x.wide(total))


@kind(*ANY)
def misaligned_residuals(w: Writer, x: Value) -> Value:
    total = w.pick(8, 9)
    one, other = parts_of(w, total), parts_of(w, total)
    joined = [
        w.line(f"torch.cat([{', '.join(str(layer(w, x, n)) for n in sizes)}], {x.dim})") for sizes in (one, other)
    ]
    return w.put(f"{joined[0]} + {joined[1]}", x.wide(total))


@kind(*ANY)
def concat_in_a_loop(w: Writer, x: Value) -> Value:
    """A dense block."""
    grow = w.pick(3, 4)
    make = "nn.Conv2d({}, {}, 3, padding=1)" if x.layout == "image" else "nn.Linear({}, {})"
    blocks = w.part("nn.ModuleList(" + make.format(f"{x.channels} + {grow} * i", grow) + " for i in range(2))")
    name = w.new("x")
    w.do(
        f"{name} = {x}", f"for block in {blocks}:", f"    {name} = torch.cat([{name}, F.relu(block({name}))], {x.dim})"
    )
    return Value(name, x.wide(x.channels + 2 * grow))


@kind(*ANY)
def gated_halves(w: Writer, x: Value) -> Value:
    """GLU, written in several ways."""
    half = w.pick(3, 4, 6)
    y = layer(w, x, 2 * half)
    if w.chance(0.3):
        return w.put(f"F.glu({y}, dim={y.dim})", x.wide(half))
    ways = [f"{y}.chunk(2, {y.dim})", f"torch.chunk({y}, 2, dim={y.dim - len(y.shape) - 1})"]
    ways.append(f"{y}.split({w.number(half, f'{y.width} // 2')}, {y.dim})")
    ways.append(
        f"({y.part(stop=w.number(half, f'{y.width} // 2'))}, {y.part(start=w.number(half, f'{y.width} // 2'))})"
    )
    one, other = w.names(2, w.pick(*ways))
    return w.put(
        w.pick(f"F.silu({one}) * {other}", f"{one} * torch.sigmoid({other})", f"{one} - {other}"), x.wide(half)
    )


@kind(*ANY)
def gate_and_value_apart(w: Writer, x: Value) -> Value:
    inside = w.size()
    y = w.put(f"F.silu({layer(w, x, inside)}) * {layer(w, x, inside)}", x.wide(inside))
    return layer(w, y, x.channels)


@kind(*ANY)
def unequal_split(w: Writer, x: Value) -> Value:
    total = w.pick(8, 9)
    one, other = parts_of(w, total)
    y = layer(w, x, total)
    sizes = [w.number(one), w.number(other)]
    if w.chance(0.3):
        sizes[1] = f"{y.width} - {sizes[0]}"
    names = w.names(2, f"{w.pick('torch.split', 'torch.split')}({y}, [{', '.join(sizes)}], {y.dim})")
    left, right = Value(names[0], x.wide(one)), Value(names[1], x.wide(other))
    if w.chance(0.5):
        return w.put(f"torch.cat([{activated(w, layer(w, left, 3))}, {right}], {x.dim})", x.wide(3 + other))
    return w.put(f"{layer(w, left, x.channels)} + {layer(w, right, x.channels)}", x.shape)


@kind(*ANY)
def three_chunks(w: Writer, x: Value) -> Value:
    width = w.pick(3, 4)
    one, two, three = w.names(3, f"{layer(w, x, 3 * width)}.chunk(3, {x.dim})")
    return w.put(f"{one} * {two} + {three}", x.wide(width))


@kind(*ANY)
def slices(w: Writer, x: Value) -> Value:
    """Parts that overlap, are next to each other, or leave something out."""
    y = layer(w, x, 8)
    size = w.pick(3, 5)
    cut = w.number(size)
    first, second = w.put(y.part(stop=cut), x.wide(size)), w.put(y.part(start=cut), x.wide(8 - size))
    if w.chance(0.3):
        return first
    if w.chance(0.5):
        return w.put(f"torch.cat([{second}, {first}], {x.dim})", x.wide(8))
    return w.put(f"{layer(w, first, 4)} * {layer(w, second, 4)}", x.wide(4))


@kind(*ANY)
def every_other(w: Writer, x: Value) -> Value:
    y = layer(w, x, 8)
    even, odd = w.put(y.part(step=2), x.wide(4)), w.put(y.part(start=1, step=2), x.wide(4))
    return w.pick(
        w.put(f"{even} * {odd}", x.wide(4)),
        w.put(f"torch.stack([-{odd}, {even}], -1).flatten(-2)", x.wide(8)) if x.dim == len(x.shape) else even,
        w.put(f"torch.cat([{odd}, {even}], {x.dim})", x.wide(8)),
    )


@kind(*ANY)
def stack_and_reduce(w: Writer, x: Value) -> Value:
    several = ", ".join([str(x), str(like(w, x)), str(layer(w, x, x.channels))])
    at = w.pick(0, 1, -1)
    return w.put(f"torch.stack([{several}], {at}).{w.pick('sum', 'mean', 'amax')}({at})", x.shape)


@kind(*ANY)
def weighted_branches(w: Writer, x: Value) -> Value:
    """Branches, summed with learned weights."""
    weights = w.line(f"{w.raw(3)}.softmax(0)")
    branches = [str(x), str(like(w, x)), str(layer(w, x, x.channels))]
    return w.put(" + ".join(f"{weights}[{i}] * {branch}" for i, branch in enumerate(branches)), x.shape)


@kind(*ANY)
def module_used_twice(w: Writer, x: Value) -> Value:
    inside = w.size()
    make = "nn.Conv2d({0}, {0}, 3, padding=1)" if x.layout == "image" else "nn.Linear({0}, {0})"
    same = w.part(make.format(inside))
    y = layer(w, x, inside)
    return w.put(w.pick(f"{same}(F.relu({same}({y})))", f"{same}({y}) + {same}(F.relu({y}))"), x.wide(inside))


@kind(*ANY)
def shared_weight(w: Writer, x: Value) -> Value:
    """One weight in two layers, there and back."""
    inside = w.size()
    if x.layout == "image":
        weight = w.raw(inside, x.channels, 3, 3)
        y = activated(w, w.put(f"F.conv2d({x}, {weight}, padding=1)", x.wide(inside)))
        return w.put(f"F.conv_transpose2d({y}, {weight}, padding=1)", x.shape)
    there = w.part(f"nn.Linear({x.channels}, {inside})")
    y = activated(w, w.put(f"{there}({x})", x.wide(inside)))
    return w.put(w.pick(f"F.linear({y}, {there}.weight.t())", f"{y} @ {there}.weight"), x.shape)


@kind(*ANY)
def written_in_place(w: Writer, x: Value) -> Value:
    """A new tensor, and writes to all of it."""
    y = layer(w, x, x.channels)
    w.do(f"{y} += {x}")
    if w.chance(0.5):
        w.do(f"{y}.mul_({w.pick('0.5', y.by_channel(w.raw(x.channels)))})")
    return activated(w, y)


@kind(*ANY)
def slices_written(w: Writer, x: Value) -> Value:
    """A tensor, and writes to parts of it."""
    y = w.put(f"{layer(w, x, 8)}.clone()", x.wide(8))
    number, part = w.pick((4, y.part(step=2)), (4, y.part(stop=w.number(4))), (3, y.part(start=w.number(5))))
    w.do(f"{part} {w.pick('=', '+=', '*=')} {layer(w, x, number)}")
    if x.layout == "image" and w.chance(0.5):
        w.do(f"{y}[:, :, 0] = 0.0")
    return y


@kind(*ANY)
def put_into_zeros(w: Writer, x: Value) -> Value:
    """Parts of a tensor of zeros are filled."""
    one, other = layer(w, x, 3), layer(w, x, 5)
    shape = [str(n) for n in x.space]
    shape.insert(x.dim - 1, f"{one.width} + {other.width}" if w.chance(0.5) else w.number(8))
    room = w.put(f"{x}.new_zeros(b, {', '.join(shape)})", x.wide(8))
    cut = one.width if w.chance(0.5) else w.number(3)
    w.do(f"{room.part(stop=cut)} = {one}", f"{room.part(start=cut)} = {other}")
    return room


@kind(*ANY)
def permuted(w: Writer, x: Value) -> Value:
    order = w.buffer(f"torch.randperm({x.channels})")
    y = layer(w, x, x.channels)
    ways = [f"{y}.index_select({x.dim}, {order})", f"{y}.flip({x.dim})", f"{y}.roll(1, {x.dim})"]
    return w.put(w.pick(*ways), x.shape)


@kind(*ANY)
def padded(w: Writer, x: Value) -> Value:
    """A shortcut to more channels, filled up with zeros."""
    before, after = w.pick(0, 2), 2
    lead = "0, 0, 0, 0, " if x.layout == "image" else ""
    wide = layer(w, x, x.channels + before + after)
    return w.put(f"{wide} + F.pad({x}, ({lead}{before}, {after}))", wide.shape)


@kind(*ANY)
def highway(w: Writer, x: Value) -> Value:
    gate, y = w.line(f"torch.sigmoid({layer(w, x, x.channels)})"), layer(w, x, x.channels)
    return w.put(w.pick(f"{gate} * {y} + (1 - {gate}) * {x}", f"torch.lerp({x}, {y}, {gate})"), x.shape)


@kind(*ANY)
def copies(w: Writer, x: Value) -> Value:
    """Every channel twice: side by side, or all after all."""
    y = layer(w, x, w.pick(3, 4))
    times = ", ".join("2" if d == x.dim else "1" for d in range(len(x.shape) + 1))
    ways = [f"{y}.repeat({times})", f"{y}.repeat_interleave(2, {x.dim})", f"torch.cat([{y}, {y}], {x.dim})"]
    return w.put(w.pick(*ways), x.wide(2 * y.channels))


@kind(*ANY)
def grouped_channels(w: Writer, x: Value) -> Value:
    """Channels as (group, channel in the group), each group scaled or all of them added up."""
    group, each = w.pick((2, 3), (2, 4), (3, 4), (4, 2))
    y = layer(w, x, group * each)
    sizes = w.number(group), w.number(each, f"{y.width} // {group}", "-1")
    z = w.line(f"{y}.unflatten({x.dim}, ({sizes[0]}, {sizes[1]}))")
    way = w.pick("scaled", "summed", "turned")
    if way == "summed":
        return w.put(f"{z}.{w.pick('sum', 'amax', 'mean')}({x.dim})", x.wide(each))
    if way == "scaled":
        scales = w.raw(group, 1, *([1, 1] if x.layout == "image" else []))
        return w.put(f"({z} * {scales}).flatten({x.dim}, {x.dim + 1})", y.shape)
    return w.put(f"{z}.transpose({x.dim}, {x.dim + 1}).flatten({x.dim}, {x.dim + 1})", y.shape)


@kind(*ANY)
def custom_function(w: Writer, x: Value) -> Value:
    """A function with a gradient of its own."""
    source = "\n".join([
        "class Scaled(torch.autograd.Function):",
        "    @staticmethod",
        "    def forward(ctx, x, scale):",
        "        ctx.save_for_backward(x, scale)",
        "        return x * scale.square()",
        "",
        "    @staticmethod",
        "    def backward(ctx, gradient):",
        "        x, scale = ctx.saved_tensors",
        "        return gradient * scale.square(), None",
        "",
    ])  # fmt: skip
    if source not in w.classes:
        w.classes.append(source)
    return w.put(f"Scaled.apply({x}, {x.by_channel(w.raw(x.channels))})", x.shape)


@kind(*ANY)
def dead_code(w: Writer, x: Value) -> Value:
    """Something that is computed and never used."""
    w.line(f"{layer(w, x, w.size())}.{w.pick('sum()', 'mean(1)', 'flatten(1)[:, :3]')}")
    return layer(w, x, w.size())


@kind(*ANY)
def block(w: Writer, x: Value) -> Value | None:
    """A module of its own, once, twice the same, or several in a row."""
    if w.depth > 1:
        return None
    inner = Writer(w.random, w.classes, [], w.depth + 1)
    inner.live.append(Value("x0", x.shape))
    inner.extend(w.pick(1, 2))
    y = inner.live[-1]
    back = "flat" not in (x.layout, y.layout) and y.layout == x.layout and y.space == x.space
    if not back and y.layout != x.layout:
        return None
    if y.space != x.space:
        return None
    y = layer(inner, y, x.channels)
    inner.do(f"return {w.pick(str(y), f'x0 + {y}')}")
    name = f"Block{len(w.classes)}"
    w.classes.append(inner.source(name))
    w.used.append(f"[{' '.join(inner.used)}]")
    way = w.pick("once", "twice", "list", "sequence")
    if way == "once":
        return w.put(f"{w.part(f'{name}()')}({x})", x.shape)
    if way == "twice":
        same = w.part(f"{name}()")
        return w.put(f"{same}({same}({x}))", x.shape)
    if way == "sequence":
        return w.put(f"{w.part(f'nn.Sequential({name}(), nn.Tanh(), {name}())')}({x})", x.shape)
    blocks, result = w.part(f"nn.ModuleList({name}() for _ in range(2))"), w.new("x")
    w.do(f"{result} = {x}", f"for block in {blocks}:", f"    {result} = {result} + block({result})")
    return Value(result, x.shape)


@kind(*ANY)
def normed_outputs(w: Writer, x: Value) -> Value:
    return normed(w, activated(w, layer(w, x, w.size())))
