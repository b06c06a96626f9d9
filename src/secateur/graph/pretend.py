"""Run a model as if units were gone, with nothing removed: what the smaller model must compute.

Zeros at removed positions are the same as no positions for most ops, but not for a norm, a softmax or a mean. So the
ops of the analysed run are gone through once more on the full model: removed positions of every result are set to zero,
and an op that combines positions runs on those that stay. That holds for every unit, whatever it is mixed with.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur._errors import UnsupportedError
from secateur.graph.call import operands
from secateur.graph.coupling import Coupling
from secateur.graph.heads import free_heads
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.ran import Ran
from secateur.graph.scalars import DATA, are_close, scalars_of
from secateur.graph.solve import Solution
from secateur.graph.trace import Inputs, call_with, named_tensors, undisturbed

__all__ = ["Foreseen", "Pretence", "run_without"]


def run_without(
    model: nn.Module, inputs: Inputs, coupling: Coupling, units: Iterable[int], *, watching: Iterable[Any] = ()
) -> Any:
    """What the model returns when these units are gone.

    Args:
        model: The model that was analysed, or a copy, in the same mode.
        inputs: The example inputs of the analysis.
        coupling: Its coupling.
        units: Class numbers of the units.
        watching: Further modes to run it under.

    Returns:
        The result; positions of outputs that are gone hold zeros.

    Raises:
        UnsupportedError: The model runs other ops than it did when it was analysed.

    Changes:
        Parameters and buffers of the model, which become zero at removed positions.
    """
    mode = Pretence(coupling.ran, _Staying(coupling.solution, units))
    normed = {id(dims) for step in coupling.ran if step.name == "aten._weight_norm_interface" for dims in step.inputs}
    for name, tensor in named_tensors(model).items():
        if id(coupling.dims[name]) not in normed:  # what they make keeps its values, and is cleared when it is made
            mode.staying.clear_(tensor.data, coupling.dims[name])
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model))
        stack.enter_context(free_heads(model))
        stack.enter_context(mode)
        for watcher in watching:  # they see the model's own ops, and not those that take positions away
            stack.enter_context(watcher)
        return call_with(model, inputs)


class _Staying:
    """Positions that stay when some units go, dim by dim."""

    def __init__(self, solution: Solution, units: Iterable[int]) -> None:
        self._solution = solution
        self._gone = solution.removed(units)
        self._known: dict[Dim, tuple[Tensor, Tensor] | None] = {}

    def _split(self, dim: Dim) -> tuple[Tensor, Tensor] | None:
        """The positions of a dim that stay, and those that go; None if all stay."""
        if dim not in self._known:
            kept = torch.from_numpy(self._solution.kept(dim, self._gone))
            self._known[dim] = None if bool(kept.all()) else (kept.nonzero()[:, 0], (~kept).nonzero()[:, 0])
        return self._known[dim]

    def count(self, dim: Dim) -> int:
        """Number of positions that stay."""
        parts = self._split(dim)
        return size_of(dim) if parts is None else len(parts[0])

    def clear_(self, tensor: Tensor, dims: Dims) -> None:
        """Zero positions that go; copies that share memory (``expand``) are no positions of their own."""
        once = tensor[tuple(slice(None) if stride else slice(1) for stride in tensor.stride())]
        for d, dim in enumerate(dims):
            parts = self._split(dim)
            if parts is not None and tensor.stride(d):
                once.index_fill_(d, parts[1].to(tensor.device), 0)

    def gathered(self, tensor: Tensor, dims: Dims) -> Tensor:
        """The positions that stay, in a smaller tensor."""
        for d, dim in enumerate(dims):
            parts = self._split(dim)
            if parts is not None:
                tensor = tensor.index_select(d, parts[0].to(tensor.device))
        return tensor

    def scattered(self, tensor: Tensor, dims: Dims) -> Tensor:
        """The other way round: zeros where positions are gone."""
        for d, dim in enumerate(dims):
            parts = self._split(dim)
            if parts is not None:
                full = tensor.new_zeros([*tensor.shape[:d], size_of(dim), *tensor.shape[d + 1 :]])
                tensor = full.index_copy_(d, parts[0].to(tensor.device), tensor)
        return tensor


class _Following(TorchDispatchMode):
    """Goes through ops in step with an analysed run; those without results, which only read, are passed over.

    How a scalar is read off a tensor depends on what watches the run.
    """

    supports_higher_order_operators = True

    def __init__(self, ran: Sequence[Ran], staying: _Staying) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.staying = staying
        by_data = itertools.accumulate((step.scalars == DATA for step in ran), operator.or_)
        self._ran = ((step, known) for step, known in zip(ran, by_data, strict=True) if step.outputs)
        self.by_data = False

    def _next(self, func: Any) -> Ran | None:
        """The step of the analysed run that this op is; None if there the ops went another way."""
        step, self.by_data = next(self._ran, (None, self.by_data))
        packet = getattr(func, "overloadpacket", func)
        return step if step is not None and step.name == str(packet) else None


class Pretence(_Following):
    """Zeroes removed positions of every result, and has ops that combine positions run on those that stay."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results = list(operands(out))
        if not results:
            return out
        step = self._step(func)
        if len(results) != len(step.outputs):
            raise UnsupportedError(f"the model does not run as when it was analysed: {func} gives other results.")
        for tensor, dims in zip(results, step.outputs, strict=True):
            if tuple(tensor.shape) != _sizes(tensor, dims, size_of):
                raise UnsupportedError(f"the model does not run as when it was analysed: {func} gives other sizes.")
            self.staying.clear_(tensor, dims)
        if self._is_mixed(step, func):
            self._mix_again(step, func, args, kwargs, results)
        return out

    def _step(self, func: Any) -> Ran:
        """The op's step, which must be the next one."""
        step = self._next(func)
        if step is None:
            raise UnsupportedError(f"the model does not run as when it was analysed: {func} came out of turn.")
        return step

    def _is_mixed(self, step: Ran, func: Any) -> bool:
        """Whether an op combines positions some of which are gone."""
        return not func._schema.is_mutable and any(self.staying.count(dim) < size_of(dim) for dim in step.mixed)

    def _mix_again(
        self, step: Ran, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> None:
        """Put into the results what the op makes of the positions that stay."""
        sources = iter(step.inputs)
        args = tuple(self._smaller(argument, sources) for argument in args)
        kwargs = {name: self._smaller(argument, sources) for name, argument in kwargs.items()}
        again = operands(func(*self._resized(step, args), **kwargs))
        for tensor, smaller, dims in zip(results, again, step.outputs, strict=True):
            tensor.copy_(self.staying.scattered(smaller, dims))

    def _smaller(self, argument: Any, sources: Iterator[Dims]) -> Any:
        """An argument with the positions that stay."""
        if isinstance(argument, Tensor):
            return self.staying.gathered(argument, next(sources))
        if isinstance(argument, list | tuple):
            return type(argument)(self._smaller(entry, sources) for entry in argument)
        return argument

    def _resized(self, step: Ran, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with sizes among them as they are for what stays."""
        if step.name in ("aten.native_layer_norm", "aten._fused_rms_norm"):
            return (args[0], list(args[0].shape[args[0].dim() - len(args[1]) :]), *args[2:])
        if step.name == "aten.native_group_norm":
            inner, groups = args[0].shape[2:].numel(), self.staying.count(step.outputs[1][1])
            return (*args[:3], *args[0].shape[:2], inner, groups, *args[7:])
        return args


class Foreseen(_Following):
    """Compares every op of the smaller model with what the analysis foresees: shapes of results, and scalars.

    Args:
        coupling: The analysis.
        units: Class numbers of the units that went.

    Attributes:
        wrong: The first result of another shape, empty if there was none.
        numbers: Ops that were given other scalars than in the full model; what follows an op that reads a scalar off a
            tensor is not compared, since it depends on data.
        compared: Number of results that were compared; where ops come in another order, comparing ends.
    """

    def __init__(self, coupling: Coupling, units: Iterable[int]) -> None:
        super().__init__(coupling.ran, _Staying(coupling.solution, units))
        self.wrong = ""
        self.numbers: list[str] = []
        self.compared = 0
        self._in_step = True

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op and look at its results."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results = list(operands(out))
        if self._in_step and results:
            step = self._next(func)
            self._in_step = step is not None and len(step.outputs) == len(results)
            if step is not None and self._in_step:
                self._compare_scalars(step, scalars_of(step.name, args, kwargs, out))
                for tensor, dims in zip(results, step.outputs, strict=True):
                    self._compare(step.name, tensor, dims)
        return out

    def _compare_scalars(self, step: Ran, scalars: tuple[float, ...]) -> None:
        """What one op was given."""
        if not self.by_data and len(scalars) == len(step.scalars) and not are_close(step.scalars, scalars):
            self.numbers.append(f"{step.name}: {list(step.scalars)} -> {list(scalars)}")

    def _compare(self, name: str, tensor: Tensor, dims: Dims) -> None:
        """One result."""
        expected = _sizes(tensor, dims, self.staying.count)
        self.compared += 1
        if not self.wrong and tuple(tensor.shape) != expected:
            self.wrong = f"{name} gave {tuple(tensor.shape)} where {expected} was predicted (result {self.compared})"


def _sizes(tensor: Tensor, dims: Dims, count: Callable[[Dim], int]) -> tuple[int, ...]:
    """The shape that dims come to; a size that depends on values is taken as it is."""
    counted = [any(axis.is_counted for axis in dim) for dim in dims]
    return tuple(tensor.shape[d] if counted[d] else count(dim) for d, dim in enumerate(dims))
