"""Structures of networks on sequences and on vectors, other than attention."""

from __future__ import annotations

from tests.graph.generated import Value, Writer, kind
from tests.graph.kinds.layers import activated, layer, normed


@kind("tokens", "flat")
def feed_forward(w: Writer, x: Value) -> Value:
    """Norm, wide, back, added."""
    y = layer(w, activated(w, layer(w, normed(w, x), w.pick(8, 12))), x.channels)
    return w.put(f"{x} + {y}", x.shape)


@kind("tokens", "flat")
def swiglu(w: Writer, x: Value) -> Value:
    """Gate and value apart, or in one weight."""
    inside = w.pick(4, 6)
    if w.chance(0.5):
        gate, value = layer(w, x, inside), layer(w, x, inside)
    else:
        both = layer(w, x, 2 * inside)
        ways = f"{both}.chunk(2, -1)", f"{both}.unflatten(-1, (2, -1)).unbind(-2)"
        gate, value = w.names(2, w.pick(*ways))
    return layer(w, w.put(f"F.silu({gate}) * {value}", x.wide(inside)), x.channels)


@kind("tokens")
def recurrent(w: Writer, x: Value) -> Value:
    name, hidden = w.pick("LSTM", "GRU", "RNN"), w.pick(3, 4)
    layers, both, first = w.pick(1, 1, 2), w.chance(0.3), w.chance(0.7)
    options = f"num_layers={layers}, bidirectional={both}, batch_first={first}"
    rnn = w.part(f"nn.{name}({x.channels}, {hidden}, {options})")
    width = hidden * (2 if both else 1)
    if first and w.chance(0.2):
        state = w.line(f"{rnn}({x})[1]{'[0]' if name == 'LSTM' else ''}[-1]")
        return Value(state, (hidden,))
    if first:
        return w.put(f"{rnn}({x})[0]", x.wide(width))
    return w.put(f"{rnn}({x}.transpose(0, 1))[0].transpose(0, 1)", x.wide(width))


@kind("tokens")
def cell(w: Writer, x: Value) -> Value:
    """A loop over time."""
    name, hidden = w.pick("LSTMCell", "GRUCell"), w.pick(3, 4)
    one = w.part(f"nn.{name}({x.channels}, {hidden})")
    state, outputs = w.new("x"), w.new("x")
    output = f"{state}[0]" if name == "LSTMCell" else state
    start = w.pick("None", f"{x}.new_zeros(b, {w.number(hidden)})") if name == "GRUCell" else "None"
    w.do(f"{state}, {outputs} = {start}, []", f"for step in {x}.unbind(1):", f"    {state} = {one}(step, {state})",
         f"    {outputs}.append({output})")  # fmt: skip
    return w.put(f"torch.stack({outputs}, 1)", x.wide(hidden))


@kind("tokens")
def convolution_over_time(w: Writer, x: Value) -> Value:
    y = layer(w, x, w.pick(4, 6))
    outputs = w.pick(4, 6)
    way = w.pick("plain", "depthwise", "causal")
    if way == "depthwise":
        conv, outputs = f"nn.Conv1d({y.channels}, {y.channels}, 3, padding=1, groups={y.channels})", y.channels
    else:
        conv = f"nn.Conv1d({y.channels}, {outputs}, 3, padding={1 if way == 'plain' else 2})"
    cut = f"[..., :{x.shape[0]}]" if way == "causal" else ""
    return w.put(f"{w.part(conv)}({y}.transpose(1, 2)){cut}.transpose(1, 2)", x.wide(outputs))


@kind("tokens")
def mixer(w: Writer, x: Value) -> Value:
    """Layers along the tokens."""
    inside = w.pick(3, 5)
    up, down = w.part(f"nn.Linear({x.shape[0]}, {inside})"), w.part(f"nn.Linear({inside}, {x.shape[0]})")
    return w.put(f"{x} + {down}(F.gelu({up}({normed(w, x)}.transpose(1, 2)))).transpose(1, 2)", x.shape)


@kind("tokens")
def learned_position(w: Writer, x: Value) -> Value:
    """One vector a place, as a parameter or looked up."""
    length, width = x.shape
    if w.chance(0.5):
        return w.put(f"{x} + {w.raw(1, length, width)}", x.shape)
    table = w.part(f"nn.Embedding({length + 2}, {width})")
    ways = f"{table}(torch.arange({x}.shape[1]))", f"{table}.weight[:{x}.shape[1]]"
    return w.put(f"{x} + {w.pick(*ways)}", x.shape)


@kind("tokens")
def extra_token(w: Writer, x: Value) -> Value:
    token = w.raw(1, 1, x.channels)
    ways = f"{token}.expand(b, -1, -1)", f"{token}.repeat(b, 1, 1)", f"{token}.expand(b, 1, {x.width})"
    return w.put(f"torch.cat([{w.pick(*ways)}, {x}], 1)", (x.shape[0] + 1, x.channels))


@kind("tokens", "flat")
def mixture_of_experts(w: Writer, x: Value) -> Value:
    inside = w.pick(3, 4)
    router = w.part(f"nn.Linear({x.channels}, 2)")
    expert = f"nn.Sequential(nn.Linear({x.channels}, {inside}), nn.GELU(), nn.Linear({inside}, {x.channels}))"
    experts = w.part(f"nn.ModuleList({expert} for _ in range(2))")
    if w.chance(0.4):  # all of them, weighted
        weights = w.line(f"{router}({x}).softmax(-1)")
        return w.put(f"sum({weights}[..., i, None] * expert({x}) for i, expert in enumerate({experts}))", x.shape)
    flat = w.line(f"{x}.reshape(-1, {w.number(x.channels, x.width)})")
    weight, chosen = w.names(2, f"{router}({flat}).softmax(-1).max(-1)")
    out = w.line(f"torch.zeros_like({flat})")
    w.do(f"for i, expert in enumerate({experts}):", f"    rows = ({chosen} == i).nonzero().squeeze(1)",
         f"    {out}.index_add_(0, rows, expert({flat}[rows]) * {weight}[rows, None])")  # fmt: skip
    return w.put(f"{out}.view({x}.shape)", x.shape)


@kind("tokens", "flat")
def experts_in_one_weight(w: Writer, x: Value) -> Value:
    """All experts' weights in one parameter, all experts run."""
    inside = w.pick(3, 4)
    up, down = w.raw(2, x.channels, inside), w.raw(2, inside, x.channels)
    y = w.line(f'F.gelu(torch.einsum("...i,eij->...ej", {x}, {up}))')
    return w.put(f'torch.einsum("...ej,eji->...i", {y}, {down})', x.shape)


@kind("tokens", "flat")
def low_rank(w: Writer, x: Value) -> Value:
    """An adapter beside a layer."""
    y, down, up = layer(w, x, x.channels), w.raw(3, x.channels), w.raw(x.channels, 3)
    return w.put(f"{y} + 0.5 * {w.pick(f'({x} @ {down}.T @ {up}.T)', f'F.linear({x}, {up} @ {down})')}", x.shape)


@kind("flat", "tokens")
def bilinear(w: Writer, x: Value) -> Value:
    inside, outputs = w.pick(3, 4), w.pick(4, 6)
    one, other = layer(w, x, inside), layer(w, x, 4)
    return w.put(f"{w.part(f'nn.Bilinear({inside}, 4, {outputs})')}({one}, {other})", x.wide(outputs))


@kind("tokens", "flat")
def soft_features(w: Writer, x: Value) -> Value:
    """A softmax over channels."""
    return w.put(f"{x} * {layer(w, x, x.channels)}.softmax(-1)", x.shape)


@kind("tokens", "flat")
def product_of_features(w: Writer, x: Value) -> Value:
    """Inner products of two projections, and a sum over channels."""
    one, other = layer(w, x, 4), layer(w, x, 4)
    function = w.pick("{}", "torch.sigmoid({})", "({} + 1)")
    return w.put(f"{x} * ({function.format(one)} * {function.format(other)}).sum(-1, keepdim=True)", x.shape)


@kind("tokens")
def scan(w: Writer, x: Value) -> Value:
    """A state that is carried along the tokens, channel by channel."""
    gate, value = w.line(f"torch.sigmoid({layer(w, x, x.channels)})"), layer(w, x, x.channels)
    if w.chance(0.4):
        return w.put(f"({gate} * {value}).cumsum(1)", x.shape)
    state, states = w.line(f"torch.zeros_like({x}[:, 0])"), w.line("[]")
    w.do(f"for i in range({x}.shape[1]):", f"    {state} = {gate}[:, i] * {state} + {value}[:, i]",
         f"    {states}.append({state})")  # fmt: skip
    return w.put(f"torch.stack({states}, dim=1)", x.shape)


@kind("tokens")
def to_image(w: Writer, x: Value) -> Value:
    sides = {16: (4, 4), 32: (8, 4), 4: (2, 2), 8: (4, 2), 12: (4, 3)}.get(x.shape[0])
    if sides is None or min(sides) < 4:
        return layer(w, x, w.size())
    ways = f"{x}.transpose(1, 2).reshape(b, {x.width}, {sides[0]}, {sides[1]})", f"{x}.mT.unflatten(2, {sides})"
    return w.put(w.pick(*ways), (x.channels, *sides))


@kind("tokens")
def to_flat_tokens(w: Writer, x: Value) -> Value:
    """One token, a mean of all, or all in a row."""
    if w.chance(0.3):
        row = w.put(f"{x}.{w.pick('flatten(1)', 'reshape(b, -1)')}", (x.shape[0] * x.channels,))
        return layer(w, row, w.size())
    return w.put(f"{x}{w.pick('.mean(1)', '[:, 0]', '[:, -1]', '.max(dim=1).values')}", (x.channels,))


@kind("flat")
def to_tokens_flat(w: Writer, x: Value) -> Value:
    """Several tokens from one vector."""
    width = w.pick(4, 6)
    y = layer(w, x, 4 * width)
    ways = f"view(b, 4, {w.number(width, '-1')})", f"unflatten(1, (4, {w.number(width)}))", "reshape(b, 4, -1)"
    return w.put(f"{y}.{w.pick(*ways)}", (4, width))


@kind("flat")
def gathered(w: Writer, x: Value) -> Value:
    """Prototypes and distances to them, as weights."""
    prototypes = w.raw(5, x.channels)
    weights = w.line(f"torch.softmax(-torch.cdist({x}, {prototypes}), -1)")
    return w.put(f"{weights} @ {w.pick(prototypes, w.raw(5, x.channels))}", x.shape)
