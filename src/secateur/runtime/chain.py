"""Packed linear layers that follow each other in nn.Sequential, multiplied in one call.

For one row of input, to go from Python to the kernels and back takes as long as a product of a thousand units, and so
does the call of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _of_all

from secateur._native.products import Product, chained
from secateur.runtime import calls
from secateur.runtime.formats._format import Bound
from secateur.runtime.layers import SparseLinear, multiplied

__all__ = ["Chain"]


class Chain(nn.Sequential):
    """nn.Sequential that multiplies packed linear layers in one call and passes over places where nothing is left.

    Hooks, tracers and compilers see each part: where one of them watches, the parts are called one by one.
    """

    _plan: _Plan | None = None

    def forward(self, input: Any) -> Any:
        """Call one part after another."""
        modules = cast(tuple[nn.Module, ...], tuple(self._modules.values()))
        plan = None if torch.compiler.is_compiling() else self._planned(modules)
        for step in modules if plan is None or plan.is_attended() else plan.steps:
            input = step(input)
        return input

    def _planned(self, modules: tuple[nn.Module, ...]) -> _Plan:
        """What to do for modules, kept for as long as they are the same."""
        plan = self._plan
        if plan is None or plan.modules != modules:
            self._plan = plan = _Plan(modules)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own plan: this one is of this one's layers."""
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}


class _Plan:
    """What is called of some modules, one after another."""

    def __init__(self, modules: tuple[nn.Module, ...]) -> None:
        self.modules = modules
        self.steps = tuple(_steps(modules))
        self._attributes = tuple(vars(module) for module in modules)

    def is_attended(self) -> bool:
        """Whether somebody wants to see the calls of the modules: by a hook, or by a forward in the place of theirs."""
        for each in self._attributes:
            if each["_forward_hooks"] or each["_forward_pre_hooks"] or "forward" in each:
                return True
        return bool(_of_all._global_forward_hooks or _of_all._global_forward_pre_hooks)


class _Run:
    """Layers whose products are one."""

    def __init__(self, layers: list[SparseLinear]) -> None:
        self.layers, self.product = layers, _joined([layer.product for layer in layers])
        self.first, self.inputs, self.outputs = layers[0], layers[0].in_features, layers[-1].out_features

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor) and not calls.is_watched(x):
            return multiplied(self.first.admitted(x), self.product, self.inputs, self.outputs)
        for layer in self.layers:
            x = layer(x)
        return x


def _steps(modules: tuple[nn.Module, ...]) -> Iterator[Callable[[Any], Any]]:
    """What is called, one after another."""
    layers: list[SparseLinear] = []
    for module in (each for each in modules if type(each) is not nn.Identity):
        layer = module if type(module) is SparseLinear and module.dtype is torch.float32 else None
        if layers and (layer is None or layer.in_features != layers[-1].out_features):
            yield _Run(layers)
            layers = []
        if layer is None:
            yield module
        else:
            layers.append(layer)
    if layers:
        yield _Run(layers)


def _joined(products: list[Bound]) -> Bound:
    """One product of several: those of the library that follow each other are one call of it."""
    steps: list[Bound] = []
    for _, some in groupby(products, type):
        alike = list(some)
        steps += [chained(cast(list[Product], alike))] if isinstance(alike[0], Product) else alike
    if len(steps) == 1:
        return steps[0]

    def product(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return product
