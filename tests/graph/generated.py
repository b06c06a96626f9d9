"""Random models: the source of an `nn.Module`, put together from the structures that networks are made of.

A seed gives the same source every time. Each *kind* (`tests/graph/kinds`) writes the lines of one structure: a residual
block, a split, a way to write attention. Sizes in the code are literals, attributes, entries of a config, or come from
the shape of a tensor. Models are small, but the ways in which parts are wired and sizes are spelled are many.
"""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]

IMPORTS = """\
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
"""

VOCABULARY = 11


@dataclass(frozen=True)
class Value:
    """A variable in the source, and the shape of one entry of its batch: (c, h, w), (t, c) or (c)."""

    name: str
    shape: Shape

    def __str__(self) -> str:
        return self.name

    @property
    def layout(self) -> str:
        return {3: "image", 2: "tokens", 1: "flat"}[len(self.shape)]

    @property
    def channels(self) -> int:
        return self.shape[0] if self.layout == "image" else self.shape[-1]

    @property
    def space(self) -> Shape:
        """The shape without the channels."""
        return self.shape[1:] if self.layout == "image" else self.shape[:-1]

    @property
    def dim(self) -> int:
        """The dim of channels."""
        return 2 if self.layout == "tokens" else 1

    @property
    def width(self) -> str:
        """The number of channels, as the tensor tells it."""
        return f"{self.name}.shape[{self.dim}]"

    def wide(self, channels: int) -> Shape:
        """The shape with another number of channels."""
        return (channels, *self.shape[1:]) if self.layout == "image" else (*self.shape[:-1], channels)

    def part(self, start: object = "", stop: object = "", step: object = "") -> str:
        """Some of the channels."""
        every = f":{step}" if step else ""
        return f"{self.name}[{':, ' * self.dim}{start}:{stop}{every}]"

    def by_channel(self, tensor: str) -> str:
        """A tensor of one number a channel, in the shape in which it meets this one."""
        return f"{tensor}[:, None, None]" if self.layout == "image" else tensor


Kind = Callable[["Writer", Value], Value | None]
"""Writes one structure on a value; None if it does not fit."""

KINDS: dict[str, tuple[Sequence[str], Kind]] = {}


def kind(*layouts: str) -> Callable[[Kind], Kind]:
    """Register a structure for values of some layouts."""

    def register(write: Kind) -> Kind:
        KINDS[write.__name__] = (layouts, write)
        return write

    return register


@dataclass
class Writer:
    """Writes the code of one module.

    Args:
        random: Where choices come from.
        classes: Sources of the modules that it uses.
        used: Names of the kinds in it.
        depth: In how many other modules it is.
    """

    random: random.Random
    classes: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    depth: int = 0
    parts: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    live: list[Value] = field(default_factory=list)
    unread: list[Value] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    # ---- choices

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def size(self) -> int:
        """A number of channels."""
        return int(self.pick(4, 6, 8, 12))

    # ---- lines

    def new(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def part(self, text: str) -> str:
        """A module or parameter that the module holds."""
        name = self.new("m")
        self.parts.append(f"self.{name} = {text}")
        return f"self.{name}"

    def raw(self, *shape: int) -> str:
        """A parameter."""
        scale = math.prod(shape[1:]) ** -0.5
        return self.part(f"nn.Parameter(torch.randn({', '.join(map(str, shape))}) * {scale:.2})")

    def buffer(self, text: str) -> str:
        name = self.new("b")
        self.parts.append(f'self.register_buffer("{name}", {text})')
        return f"self.{name}"

    def do(self, *lines: str) -> None:
        self.code += lines

    def names(self, number: int, expression: str) -> list[str]:
        """Variables for an expression that gives several results."""
        found = [self.new("x") for _ in range(number)]
        self.code.append(f"{', '.join(found)} = {expression}")
        return found

    def line(self, expression: str) -> str:
        """A variable."""
        return self.names(1, expression)[0]

    def put(self, expression: str, shape: Shape) -> Value:
        """A variable of known shape."""
        return Value(self.line(expression), shape)

    def number(self, value: int, *others: str) -> str:
        """A size in the code: a literal, a stored number, or one of the other ways to say it."""
        if others and self.chance(0.4):
            return str(self.pick(*others))
        if self.chance(0.1):
            return str(value)
        known = [name for name, stored in self._numbers.items() if stored == value]
        if known and self.chance(0.3):
            return str(self.pick(*known))
        name = self.new("n")
        where = str(self.pick(f"self.{name}", f"self.{name}", f"self.config.{name}"))
        self._numbers[where] = value
        self.parts.append(f"{where} = {value}")
        return where

    # ---- the whole

    def extend(self, steps: int) -> None:
        """Add structures to the values that there are."""
        for _ in range(steps):
            x = self.live[-1] if self.chance(0.75) else self.pick(*self.live)
            fitting = [(name, write) for name, (layouts, write) in sorted(KINDS.items()) if x.layout in layouts]
            name, write = self.pick(*fitting)
            y = write(self, x)
            if y is not None:
                self.used.append(name)
                self.live.append(y)
                self.unread = [value for value in self.unread if value is not x] + [y]

    def source(self, name: str) -> str:
        """The class."""
        lines = [f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        if any(line.startswith("self.config.") for line in self.parts):
            lines.append("        self.config = SimpleNamespace()")
        lines += [f"        {line}" for line in self.parts]
        lines += [
            "",
            "    def forward(self, x0):",
            "        b = x0.shape[0]",
            *(f"        {line}" for line in self.code),
        ]
        return "\n".join(lines) + "\n"


@dataclass
class Generated:
    """A random model.

    Args:
        seed: What it was made from.
        source: Its code.
        model: The model, in double precision.
        inputs: Its example input.
        kinds: Names of the structures in it.
    """

    seed: int
    source: str
    model: nn.Module
    inputs: Tensor
    kinds: list[str]

    def __str__(self) -> str:
        return f"seed {self.seed}, input {tuple(self.inputs.shape)}, kinds {', '.join(self.kinds)}\n\n{self.source}"


def generate(seed: int) -> Generated:
    """The model of a seed."""
    writer = Writer(random.Random(seed))
    layout = writer.pick("image", "image", "tokens", "flat", "numbers")
    length = writer.pick(4, 6)
    shape = {"image": (3, writer.pick(4, 8), 4), "tokens": (length, 6), "flat": (6,), "numbers": (length,)}[layout]
    x, embedding, width = Value("x0", shape), "", 0
    if layout == "numbers":
        width = writer.size()
        embedding = writer.part(f"nn.Embedding({VOCABULARY}, {width})")
        x = writer.put(f"{embedding}(x0)", (length, width))
    writer.live.append(x)
    writer.extend(writer.random.randint(3, 8))
    _finish(writer, embedding, width)
    source = f"{IMPORTS}\n\n" + "\n\n".join([*writer.classes, writer.source("Net")])
    scope: dict[str, Any] = {}
    file = f"<generated {seed}>"
    if seed % 4:  # now and then there is no source in which literals could be told from other numbers
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    torch.manual_seed(seed)
    model = _unspecial(scope["Net"]().double())
    batch = torch.randint(0, VOCABULARY, (3, *shape)) if embedding else torch.randn(3, *shape).double()
    return Generated(seed, source, model, batch, writer.used)


def _finish(writer: Writer, embedding: str, width: int) -> None:
    """Make outputs of what has not been read yet, one of them by the weight of the embedding (of this width)."""
    outputs = []
    for x in writer.unread[-3:]:
        pooled = {"image": f"{x}.mean((2, 3))", "tokens": f"{x}.mean(1)", "flat": f"{x}"}[x.layout]
        outputs.append(writer.line(f"{writer.part(f'nn.Linear({x.channels}, 3)')}({pooled})"))
    last = writer.live[-1]
    if embedding and last.layout == "tokens":
        to_width = writer.part(f"nn.Linear({last.channels}, {width})")
        outputs.append(writer.line(f"F.linear({to_width}({last}), {embedding}.weight)"))
    if writer.chance(0.1):
        outputs.append(str(writer.pick(*writer.live)))
    names = ", ".join(outputs)
    pairs = ", ".join(f'"{name}": {name}' for name in outputs)
    writer.do(f"return {writer.pick(f'({names},)', f'[{names}, None]', f'{{{pairs}}}')}")


def _unspecial(model: nn.Module) -> nn.Module:
    """The model with no parameter or statistic at a special value."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return model
