"""The oracle of every op rule: slice the inputs, then run the op = run the op, then slice the output.

The op runs once under a capture; the rule's facts are solved; some units are chosen at random. Then the op runs twice
more: on inputs whose removed positions are zeroed, and on inputs from which they are sliced away. What the first gives,
sliced by the labels of the result, is what the second must give.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from secateur.graph.capture import Capture, Rule, tensors_in
from secateur.graph.labels import Dim, Dims, Labels, size_of
from secateur.graph.rules import rule_for
from secateur.graph.solve import Solution, solve

Pick = Callable[[int, int], int]
"""A random integer between two, both included."""


@dataclass(frozen=True)
class After:
    """What the labels predict for the run without the removed positions: shapes of results, and a number of groups."""

    shapes: list[tuple[int, ...]]
    groups: int


@dataclass(frozen=True)
class Size:
    """An integer argument that follows the tensors: its value before, and the one after."""

    before: Any
    after: Callable[[After], Any]


@dataclass(frozen=True)
class Case:
    """One call of an op.

    Args:
        args: Positional arguments, `Size` where one follows.
        kwargs: Keyword arguments.
        overload: Which overload.
        follows: Whether the code computes the sizes that it passes.
        trusts_literals: Whether all other numbers are known to be literals.
        again: What runs instead of the op itself afterwards, where models call the op through a function that chooses
            another one for other sizes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    overload: str = "default"
    follows: bool = False
    trusts_literals: bool = False
    again: Callable[..., Any] | None = None


class Draw:
    """Makes arguments."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.pick(0, len(options) - 1)]

    def size(self) -> int:
        return self.pick(3, 6)

    def sizes(self, number: int) -> list[int]:
        return [self.size() for _ in range(number)]

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    def positive(self, *shape: int) -> Tensor:
        return torch.rand(shape, dtype=torch.float64) * 0.8 + 0.1

    def complex(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.complex128)

    def numbers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape) > 0.5


@dataclass(frozen=True)
class Example:
    """How to make calls of an op.

    Args:
        make: Makes a case.
        values: Whether values are compared; else only shapes are.
        frees: Whether something can be removed at all.
        compared: Number of results that are compared; the rest is scratch memory. All if left out.
        unneeded: Kinds of facts ("equations", "blocks", "results") whose loss the oracle cannot see, and why.
    """

    make: Callable[[Draw], Case]
    values: bool = True
    frees: bool = True
    compared: int | None = None
    unneeded: dict[str, str] = field(default_factory=dict)


EXAMPLES: dict[str, Example] = {}


def example(
    *names: str, values: bool = True, frees: bool = True, compared: int | None = None, **unneeded: str
) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Register how to make calls of some ops."""

    def register(make: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        for name in names:
            assert name not in EXAMPLES, name
            EXAMPLES[name] = Example(make, values, frees, compared, unneeded)
        return make

    return register


def operator_of(name: str, overload: str = "default") -> Any:
    """The op of a rule's name, with the overload in the name if there is one."""
    namespace, op, *own = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), op)
    wanted = own[0] if own else overload
    return getattr(packet, wanted if wanted in packet.overloads() else packet.overloads()[0])


@dataclass
class Outcome:
    """What one run of the oracle has seen.

    Args:
        removed: Number of positions removed from inputs.
        equations: Whether the rule stated equations (or that something stays because it meets what stays).
        blocks: Whether it held something.
        results: Whether some new tensor has positions that can go.
    """

    removed: int = 0
    equations: bool = False
    blocks: bool = False
    results: bool = False


class WatchedLabels(Labels):
    """Labels that count what is stated; optionally deaf to equations."""

    stated = 0
    deaf = False

    def equal(self, one: Any, other: Any) -> None:
        if one is not other and one != other and (one or other):
            self.stated += 1
        if not self.deaf:
            super().equal(one, other)


class WatchedCapture(Capture):
    """A capture that counts what is held; optionally deaf to it."""

    held = 0
    deaf = False

    def hold(self, dim: Any, why: str, result: int | None = None, *, always: bool = False) -> None:
        self.held += not all(axis.is_fixed for axis in dim)
        if not self.deaf:
            super().hold(dim, why, result, always=always)


def check(
    name: str,
    case: Case,
    pick: Pick,
    *,
    values: bool = True,
    compared: int | None = None,
    forget: str = "",
    rules: Callable[[Any], Rule] = rule_for,
) -> Outcome:
    """Hold one call of an op against the oracle.

    Args:
        name: The op.
        case: The call.
        pick: Chooses what is removed.
        values: Whether values are compared.
        compared: Of how many results; all if left out.
        forget: Which facts of the rule are dropped ("equations", "blocks", "results"), to see whether that is noticed.
        rules: The rule of an op.

    Raises:
        AssertionError: The rule is wrong.
    """
    func = operator_of(name, case.overload)
    labels = WatchedLabels()
    labels.deaf = forget == "equations"
    capture = WatchedCapture(labels, (lambda f: _fresh_results(rules(f), compared)) if forget == "results" else rules)
    capture.deaf = forget == "blocks"
    capture.following, capture.trusts_literals = case.follows, case.trusts_literals
    args, kwargs = _given(case, None)
    inputs = tensors_in((args, kwargs))
    originals = [tensor.clone() for tensor in inputs]
    dims = [labels.fresh_dims(tensor.shape) for tensor in inputs]
    for tensor, own in zip(inputs, dims, strict=True):
        capture.enter_tensor(tensor, own)
    with capture:
        out = func(*args, **kwargs)
    capture.finish([*tensors_in(out), *inputs])
    results = [capture.dims(tensor) for tensor in (*tensors_in(out), *inputs)]
    solution = solve(labels)
    outcome = Outcome(
        equations=labels.stated > 0,
        blocks=capture.held > 0,
        results=any(_is_free(capture.dims(t)) for t in tensors_in(out) if all(t is not i for i in inputs)),
    )
    values = values and not capture.random
    for untouched in (_touched(solution, [dim for dim, _ in capture.mixed]), np.zeros(len(solution.parents), bool)):
        gone = solution.removed(_choose(solution, [*dims, *results], untouched, pick))
        after = After(
            [tuple(int(solution.kept(d, gone).sum()) if d else 1 for d in own) for own in results],
            int(solution.kept((capture.groups[-1],), gone).sum()) if capture.groups else 1,
        )
        zeroed = [_zeroed(t, own, solution, gone) if values else t for t, own in zip(originals, dims, strict=True)]
        cut = [_cut(t, own, solution, gone) for t, own in zip(originals, dims, strict=True)]
        again = case.again or func
        wanted = _run(again, *_given(case, None, inputs, zeroed))
        found = _run(again, *_given(case, after, inputs, cut))
        outcome.removed += sum(w.numel() - f.numel() for w, f in zip(wanted, found, strict=True))
        exact = values and (not capture.mixed or untouched.any() or not gone.any())
        scratch = range(len(results) if compared is None else compared, len(results) - len(inputs))
        for k, (w, f, own) in enumerate(zip(wanted, found, results, strict=True)):
            if k in scratch:
                continue
            sliced = _cut(w, own, solution, gone)
            assert sliced.shape == f.shape, f"{name}: {tuple(f.shape)} instead of {tuple(sliced.shape)}"
            if exact or (values and f.dtype == torch.int64):  # numbers of positions are right or wrong
                tight = {"rtol": 1e-10, "atol": 1e-12} if f.dtype in (torch.float64, torch.complex128) else {}
                torch.testing.assert_close(f, sliced, equal_nan=True, **tight)
    return outcome


def _is_free(dims: Dims) -> bool:
    """Whether some position has a label."""
    return not all(axis.is_fixed for dim in dims for axis in dim)


def go_together(labels: Labels, one: Dim, other: Dim) -> bool:
    """Whether the same positions of both go, whatever goes."""
    solution = solve(labels)
    units = np.nonzero(solution.is_unit)[0].tolist()
    masks = [[solution.kept(dim, solution.removed([unit])).tolist() for dim in (one, other)] for unit in units]
    return all(mine == theirs for mine, theirs in masks) and len(masks) > 0


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Results, and the arguments as the op leaves them."""
    out = func(*args, **kwargs)
    return [*tensors_in(out), *tensors_in((args, kwargs))]


def _given(
    case: Case, after: After | None, old: Sequence[Tensor] = (), new: Sequence[Tensor] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with tensors exchanged and sizes filled in."""
    exchanged = {id(o): n for o, n in zip(old, new, strict=True)}

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Size):
            return leaf.before if after is None else leaf.after(after)
        return exchanged.get(id(leaf), leaf)

    args, kwargs = tree_map(fill, (case.args, case.kwargs))
    return args, kwargs


def _fresh_results(right: Rule, compared: int | None) -> Rule:
    """A rule that says nothing of its results, as far as they are compared."""

    def wrong(call: Any) -> Sequence[Dims]:
        scratch = right(call)[len(call.outputs) if compared is None else compared :]
        return [*(call.labels.fresh_dims(tensor.shape) for tensor in call.outputs[:compared]), *scratch]

    return wrong


def _touched(solution: Solution, dims: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Classes on which some dims depend."""
    touched = np.zeros(len(solution.parents) + 1, dtype=bool)
    for dim in dims:
        for axis in dim:
            touched[solution.classes(axis)] = True
    while True:
        above = solution.parents[touched[:-1]].reshape(-1)
        if touched[above].all():
            return touched[:-1]
        touched[above] = True


def _choose(solution: Solution, dims: Iterable[Dims], untouched: Any, pick: Pick) -> list[int]:
    """Random units, such that at least two positions stay in every dim."""
    flat = {dim for own in dims for dim in own if dim}
    chosen: list[int] = []
    units = np.nonzero(solution.is_unit & ~untouched)[0].tolist()
    random.Random(pick(0, 999)).shuffle(units)
    for unit in units[:40]:
        gone = solution.removed([*chosen, unit])
        if pick(0, 2) and all(solution.kept(dim, gone).sum() >= min(2, size_of(dim)) for dim in flat):
            chosen.append(unit)
    return chosen


def _zeroed(tensor: Tensor, dims: Dims, solution: Solution, gone: Any) -> Tensor:
    """A copy with zeros at the positions that go; numbers and masks are left as they are."""
    copy = tensor.clone()
    if copy.is_floating_point() or copy.is_complex():
        for d, dim in enumerate(dims):
            copy.index_fill_(d, torch.from_numpy(np.nonzero(~solution.kept(dim, gone))[0]), 0.0)
    return copy


def _cut(tensor: Tensor, dims: Dims, solution: Solution, gone: Any) -> Tensor:
    """A copy without the positions that go."""
    assert tensor.dim() == len(dims), f"{len(dims)} dims for shape {tuple(tensor.shape)}"
    copy = tensor.clone()
    for d, dim in enumerate(dims):
        kept = solution.kept(dim, gone)
        assert len(kept) == tensor.shape[d], f"{len(kept)} labels for dim {d} of shape {tuple(tensor.shape)}"
        copy = copy.index_select(d, torch.from_numpy(np.nonzero(kept)[0]))
    return copy
