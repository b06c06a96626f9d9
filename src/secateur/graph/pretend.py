"""Run a model as if units were gone, with nothing removed: what the smaller model must compute.

Zeros at removed positions are the same as no positions for most ops, but not for a norm, a softmax or a mean. So the
ops of the analysed run are gone through once more on the full model: removed positions of every result are set to zero,
and an op that combines positions runs on those that stay. That holds for every unit, whatever it is mixed with.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from secateur._compat import DispatchMode
from secateur._errors import UnsupportedError
from secateur.graph.call import operands, tensors_in
from secateur.graph.coupling import Coupling
from secateur.graph.factors import only_factors
from secateur.graph.heads import free_heads
from secateur.graph.labels import Dims, size_of
from secateur.graph.outlining import Execute, in_earnest
from secateur.graph.ran import Ran
from secateur.graph.scalars import DATA, are_close, scalars_of
from secateur.graph.staying import Staying
from secateur.graph.trace import Inputs, call_with, named_tensors, undisturbed
from secateur.graph.writes import weights_restored

__all__ = ["Foreseen", "Pretence", "Used", "Without", "parts_of_weight_norm", "run_without"]

Used = tuple[str, tuple[float, ...]]
"""An op and the floating-point scalars that it was given."""


def run_without(
    model: nn.Module,
    inputs: Inputs,
    coupling: Coupling,
    units: Iterable[int],
    *,
    values: Mapping[str, Tensor] = MappingProxyType({}),
) -> Without:
    """What the model returns when these units are gone.

    Args:
        model: The model that was analysed, or a copy; it is left as it is.
        inputs: The example inputs of the analysis.
        coupling: Its coupling.
        units: Class numbers of the units.
        values: By name, what some parameters and buffers hold instead of their own values.

    Returns:
        The result, in which positions of outputs that are gone hold zeros, and the scalars that ops were given.

    Raises:
        UnsupportedError: The model runs other ops than it did when it was analysed.
    """
    found = _run_without(model, inputs, coupling, units, values, spared=only_factors(coupling))
    if all(bool(tensor.isfinite().all()) for tensor in tensors_in(found.result)):
        return found
    return _run_without(model, inputs, coupling, units, values, spared=frozenset())


def _run_without(
    model: nn.Module,
    inputs: Inputs,
    coupling: Coupling,
    units: Iterable[int],
    values: Mapping[str, Tensor],
    spared: Set[str],
) -> Without:
    """The same with some tensors not emptied, which is right if they hold numbers, and not inf or NaN."""
    staying = Staying(coupling.solution, units)
    emptied = _emptied(model, coupling, staying, values, spared)
    with (
        _holding(emptied),
        undisturbed(model),
        weights_restored(model, in_earnest) as execute,
        free_heads(model),
        Pretence(coupling.ran, staying, execute) as mode,
    ):
        return Without(call_with(model, inputs), mode.used, staying)


class Without(NamedTuple):
    """What a model does without some of its units.

    Args:
        result: What it returns.
        used: Every op with the floating-point scalars that it was given.
        staying: Which positions stay.
    """

    result: Any
    used: Sequence[Used]
    staying: Staying


def _emptied(
    model: nn.Module, coupling: Coupling, staying: Staying, values: Mapping[str, Tensor], spared: Set[str]
) -> list[tuple[Tensor, Tensor]]:
    """Parameters and buffers, each with its values when there are zeros at removed positions, but for those spared."""
    whole = parts_of_weight_norm(coupling)
    found = []
    for name, tensor in named_tensors(model).items():
        value, dims = values.get(name, tensor).detach(), coupling.dims[name]
        is_kept = name in spared or name in whole
        found.append((tensor, value if is_kept else staying.cleared(value, dims)))
    return found


def parts_of_weight_norm(coupling: Coupling) -> frozenset[str]:
    """Names of lengths and directions: only what is made of both is emptied, since the norms of directions stay."""
    read = {id(dims) for step in coupling.ran if step.name == "aten._weight_norm_interface" for dims in step.inputs}
    return frozenset(name for name, dims in coupling.dims.items() if id(dims) in read)


@contextmanager
def _holding(values: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Have tensors hold other values of the same shapes, and give each its own memory back afterwards."""
    held = [(tensor, tensor.data, value) for tensor, value in values if value.data_ptr() != tensor.data_ptr()]
    try:
        for tensor, _, value in held:
            tensor.data = value
        yield
    finally:
        for tensor, own, _ in held:
            tensor.data = own


class _Following(DispatchMode):
    """Goes through ops in step with an analysed run; those without results, which only read, are passed over.

    How a scalar is read off a tensor depends on what watches the run.

    Attributes:
        used: Every op that had results, with the floating-point scalars that it was given.
    """

    supports_higher_order_operators = True

    def __init__(self, ran: Sequence[Ran], staying: Staying, execute: Execute = in_earnest) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.staying = staying
        self._execute = execute
        by_data = itertools.accumulate((step.scalars == DATA for step in ran), operator.or_)
        self._ran = ((step, known) for step, known in zip(ran, by_data, strict=True) if step.outputs)
        self.by_data = False
        self.used: list[Used] = []

    def _next(self, func: Any) -> Ran | None:
        """The step of the analysed run that this op is; None if there the ops went another way."""
        step, self.by_data = next(self._ran, (None, self.by_data))
        return step if step is not None and step.name == _name_of(func) else None


_IN_ORDER = frozenset({"aten.native_layer_norm"})
"""Ops whose results lie in memory as new tensors do, so that they can be put together from what stays."""


class Pretence(_Following):
    """Zeroes removed positions of every result, and has ops that combine positions run on those that stay."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op."""
        kwargs = kwargs or {}
        step = self._step(func) if _name_of(func) in _IN_ORDER else None
        if step is not None and self._is_mixed(step, func):
            out: Any = tuple(self._mixed(step, func, args, kwargs))
        else:
            out = self._execute(func, args, kwargs)
        results = list(operands(out))
        if not results:
            return out
        step = step or self._step(func)
        if len(results) != len(step.outputs):
            raise UnsupportedError(f"the model does not run as when it was analysed: {func} gives other results.")
        self.used.append((step.name, scalars_of(step.name, args, kwargs, out)))
        for tensor, dims in zip(results, step.outputs, strict=True):
            if tensor.shape != self.staying.shape(tensor, dims, whole=True):
                raise UnsupportedError(f"the model does not run as when it was analysed: {func} gives other sizes.")
            if not step.is_view:  # which shows what has been cleared
                self.staying.clear_(tensor, dims)
        if self._is_mixed(step, func) and step.name not in _IN_ORDER:
            for tensor, mixed in zip(results, self._mixed(step, func, args, kwargs), strict=True):
                tensor.copy_(mixed)
        return out

    def _step(self, func: Any) -> Ran:
        """The op's step, which must be the next one."""
        step = self._next(func)
        if step is None:
            raise UnsupportedError(f"the model does not run as when it was analysed: {func} came out of turn.")
        return step

    def _is_mixed(self, step: Ran, func: Any) -> bool:
        """Whether an op combines positions some of which are gone."""
        return any(self.staying.count(dim) < size_of(dim) for dim in step.mixed) and not func._schema.is_mutable

    def _mixed(self, step: Ran, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """What the op makes of the positions that stay, and zeros at the others."""
        sources = iter(step.inputs)
        args = tuple(self._smaller(argument, sources) for argument in args)
        kwargs = {name: self._smaller(argument, sources) for name, argument in kwargs.items()}
        again = operands(func(*self._resized(step, args), **kwargs))
        return [self.staying.scattered(smaller, dims) for smaller, dims in zip(again, step.outputs, strict=True)]

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
        execute: How an op is run, see `secateur.graph.outlining`.
        staying: What these units leave, if that is known already.

    Attributes:
        wrong: The first result of another shape, empty if there was none.
        numbers: Ops that were given other scalars than in the full model; what follows an op that reads a scalar off a
            tensor is not compared, since it depends on data.
        compared: Number of results that were compared; where ops come in another order, comparing ends.
    """

    def __init__(
        self,
        coupling: Coupling,
        units: Iterable[int],
        execute: Execute = in_earnest,
        *,
        staying: Staying | None = None,
    ) -> None:
        super().__init__(coupling.ran, staying or Staying(coupling.solution, units), execute)
        self.wrong = ""
        self.numbers: list[str] = []
        self.compared = 0
        self._in_step = True

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op and look at its results."""
        kwargs = kwargs or {}
        out = self._execute(func, args, kwargs)
        results = list(operands(out))
        if not results:
            return out
        name = _name_of(func)
        scalars = scalars_of(name, args, kwargs, out)
        self.used.append((name, scalars))
        if self._in_step:
            step = self._next(func)
            self._in_step = step is not None and len(step.outputs) == len(results)
            if step is not None and self._in_step:
                self._compare_scalars(step, scalars)
                for tensor, dims in zip(results, step.outputs, strict=True):
                    self._compare(step.name, tensor, dims)
        return out

    def _compare_scalars(self, step: Ran, scalars: tuple[float, ...]) -> None:
        """What one op was given."""
        if not self.by_data and len(scalars) == len(step.scalars) and not are_close(step.scalars, scalars):
            self.numbers.append(f"{step.name}: {list(step.scalars)} -> {list(scalars)}")

    def _compare(self, name: str, tensor: Tensor, dims: Dims) -> None:
        """One result."""
        expected = self.staying.shape(tensor, dims)
        self.compared += 1
        if not self.wrong and tensor.shape != expected:
            self.wrong = f"{name} gave {tuple(tensor.shape)} where {expected} was predicted (result {self.compared})"


@cache
def _name_of(func: Any) -> str:
    """The name of an op without overload."""
    return str(getattr(func, "overloadpacket", func))
