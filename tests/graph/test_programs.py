"""Random sequences of ops: whatever their facts add up to, slicing the parameters is slicing every result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.graph.capture import Capture
from secateur.graph.labels import Dims, Labels
from secateur.graph.rules import rule_for
from secateur.graph.solve import Solution, solve

Shape = tuple[int, ...]
Step = Callable[[list[Tensor], list[Tensor], Shape], Tensor]
"""(results so far, parameters, shape that the result must have) -> the result."""


@dataclass
class Program:
    """A straight line of ops; all keep zero at zero, so that zeroed positions never come back to life."""

    steps: list[Step] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    parameters: list[Shape] = field(default_factory=list)

    def run(self, parameters: list[Tensor], shapes: list[Shape]) -> list[Tensor]:
        results: list[Tensor] = []
        for step, shape in zip(self.steps, shapes, strict=True):
            results.append(step(results, parameters, shape))
        return results

    def append(self, step: Step, shape: Shape) -> None:
        self.steps.append(step)
        self.shapes.append(shape)

    def parameter(self, *shape: int) -> int:
        self.parameters.append(shape)
        return len(self.parameters) - 1


Extend = Callable[[st.DrawFn, Program, int, Shape], None]
"""Adds one op on result number `a` of some shape, if it fits."""

KINDS: list[Extend] = []


def kind(extend: Extend) -> Extend:
    KINDS.append(extend)
    return extend


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program = Program()
    for _ in range(2):
        p = program.parameter(*draw(st.sampled_from([(2, 6), (2, 8), (3, 4), (2, 2, 6), (12,)])))
        program.append(lambda results, parameters, shape, p=p: parameters[p] * 1, program.parameters[p])
    for _ in range(draw(st.integers(1, 8))):
        a = draw(st.integers(0, len(program.shapes) - 1))
        draw(st.sampled_from(KINDS))(draw, program, a, program.shapes[a])
    return program


def another(draw: st.DrawFn, program: Program, shape: Shape) -> int:
    """Any result of this shape."""
    return draw(st.sampled_from([i for i, other in enumerate(program.shapes) if other == shape]))


@kind
def linear(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if len(shape) > 1:
        width = draw(st.sampled_from([2, 4, 6]))
        p = program.parameter(shape[-1], width)
        program.append(lambda r, w, s: r[a] @ w[p], (*shape[:-1], width))


@kind
def add(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    b = another(draw, program, shape)
    program.append(lambda r, w, s: r[a] + r[b].relu(), shape)


@kind
def scale(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    p = program.parameter(*shape[draw(st.integers(0, len(shape) - 1)) :])
    program.append(lambda r, w, s: r[a] * w[p], shape)


@kind
def cat(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    b, d = another(draw, program, shape), draw(st.integers(0, len(shape) - 1))
    if math.prod(shape) < 60:
        program.append(lambda r, w, s: torch.cat([r[a], r[b]], d), (*shape[:d], 2 * shape[d], *shape[d + 1 :]))


@kind
def split(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    d = draw(st.integers(0, len(shape) - 1))
    outer = draw(st.sampled_from([n for n in range(1, shape[d] + 1) if shape[d] % n == 0]))
    if len(shape) < 4:
        program.append(lambda r, w, s: r[a].reshape(s), (*shape[:d], outer, shape[d] // outer, *shape[d + 1 :]))


@kind
def merge(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if len(shape) > 1:
        d = draw(st.integers(0, len(shape) - 2))
        program.append(lambda r, w, s: r[a].reshape(s), (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]))


@kind
def turn(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    d = draw(st.integers(0, len(shape) - 1))
    program.append(lambda r, w, s: r[a].transpose(d, -1), _exchanged(shape, d))


@kind
def flip(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    program.append(lambda r, w, s: r[a].flip(-1), shape)


@kind
def dot(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    b = another(draw, program, shape)
    if len(shape) > 1:
        program.append(lambda r, w, s: r[a] @ r[b].transpose(-1, -2), (*shape[:-1], shape[-2]))


@kind
def pairs(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if shape[-1] % 2 == 0:
        program.append(lambda r, w, s: r[a][..., ::2] - r[a][..., 1::2], (*shape[:-1], shape[-1] // 2))


@kind
def halves(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if shape[-1] % 2 == 0:
        program.append(lambda r, w, s: math.prod(r[a].chunk(2, -1)), (*shape[:-1], shape[-1] // 2))


@kind
def expand(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if math.prod(shape) < 60 and len(shape) < 4:
        program.append(lambda r, w, s: r[a][None].expand(s).clone(), (2, *shape))


@kind
def total(draw: st.DrawFn, program: Program, a: int, shape: Shape) -> None:
    if len(shape) > 1:
        program.append(lambda r, w, s: r[a].sum(0), shape[1:])


def _exchanged(shape: Shape, d: int) -> Shape:
    sizes = list(shape)
    sizes[d], sizes[-1] = sizes[-1], sizes[d]
    return tuple(sizes)


def cut(tensor: Tensor, dims: Dims, solution: Solution, gone: np.ndarray) -> Tensor:
    for d, dim in enumerate(dims):
        tensor = tensor.index_select(d, torch.from_numpy(np.nonzero(solution.kept(dim, gone))[0]))
    return tensor


def zeroed(tensor: Tensor, dims: Dims, solution: Solution, gone: np.ndarray) -> Tensor:
    tensor = tensor.clone()
    for d, dim in enumerate(dims):
        tensor.index_fill_(d, torch.from_numpy(np.nonzero(~solution.kept(dim, gone))[0]), 0.0)
    return tensor


@settings(max_examples=200)
@given(programs(), st.data())
def test_program_of_sliced_parameters_gives_sliced_results(program: Program, data: st.DataObject) -> None:
    parameters = [torch.randn(shape, dtype=torch.float64) for shape in program.parameters]
    labels = Labels()
    capture = Capture(labels, rule_for)
    capture.following = True  # every size is computed, as `run` does
    own = [labels.fresh_dims(shape) for shape in program.parameters]
    for parameter, dims in zip(parameters, own, strict=True):
        capture.enter_tensor(parameter, dims)
    with capture:
        results = program.run(parameters, program.shapes)
    capture.finish(results)
    found = [capture.dims(result) for result in results]
    solution = solve(labels)

    flat = {dim for dims in (*own, *found) for dim in dims if dim}
    chosen: list[int] = []
    for unit in data.draw(st.permutations(np.nonzero(solution.is_unit)[0].tolist())):
        gone = solution.removed([*chosen, unit])
        if len(chosen) < 4 and all(kept.sum() >= min(2, len(kept)) for kept in (solution.kept(d, gone) for d in flat)):
            chosen.append(unit)
    gone = solution.removed(chosen)
    event(f"removes {len(chosen)}")

    shapes = [tuple(int(solution.kept(dim, gone).sum()) for dim in dims) for dims in found]
    wanted = program.run([zeroed(p, d, solution, gone) for p, d in zip(parameters, own, strict=True)], program.shapes)
    given_ = program.run([cut(p, d, solution, gone) for p, d in zip(parameters, own, strict=True)], shapes)
    for right, dims, one in zip(wanted, found, given_, strict=True):
        torch.testing.assert_close(one, cut(right, dims, solution, gone), rtol=1e-9, atol=1e-9)
