"""Packed linear layers that follow each other in nn.Sequential, multiplied in one call.

For one row of input, to go from Python to the kernels and back takes as long as a product of a thousand units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from secateur._native.products import Product, chained
from secateur.runtime import calls
from secateur.runtime.layers import SparseLinear, multiplied

__all__ = ["Chain"]


class Chain(nn.Sequential):
    """nn.Sequential that multiplies packed linear layers in one call and passes over places where nothing is left.

    Hooks, tracers and compilers see each layer: where one of them watches, the layers are called one by one.
    """

    _of: tuple[nn.Module | None, ...] = ()
    _steps: tuple[Callable[[Any], Any], ...] = ()

    def forward(self, input: Any) -> Any:
        """Call one part after another."""
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-untyped-call]
        modules = tuple(self._modules.values())
        if modules != self._of:
            self._of, self._steps = modules, tuple(_steps(modules))
        for step in self._steps:
            input = step(input)
        return input

    def __getstate__(self) -> dict[str, Any]:
        """Copies find their own steps: these are of this one's layers."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_of", "_steps")}


class _Run:
    """Layers whose products are one."""

    def __init__(self, layers: list[SparseLinear], product: Product) -> None:
        self.layers, self.product = layers, product
        self.first, self.inputs, self.outputs = layers[0], layers[0].in_features, layers[-1].out_features
        own = (hooks for layer in layers for hooks in (layer._forward_hooks, layer._forward_pre_hooks))
        of_all = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
        self.hooks = (*of_all, *own)
        self.attributes = tuple(vars(layer) for layer in layers)

    def __call__(self, x: Any) -> Any:
        if self._is_attended() or not isinstance(x, Tensor) or calls.is_watched(x):
            for layer in self.layers:
                x = layer(x)
            return x
        return multiplied(self.first.admitted(x), self.product, self.inputs, self.outputs)

    def _is_attended(self) -> bool:
        """Whether somebody wants to see the calls of the layers: by a hook, or by a forward in the place of theirs."""
        return any(self.hooks) or any("forward" in each for each in self.attributes)


def _steps(modules: tuple[nn.Module | None, ...]) -> Iterator[Callable[[Any], Any]]:
    """What is called, one after another."""
    layers: list[SparseLinear] = []
    products: list[Product] = []
    for module in (each for each in modules if each is not None and type(each) is not nn.Identity):
        product = _product_of(module)
        if layers and (product is None or module.in_features != layers[-1].out_features):
            yield _Run(layers, chained(products))
            layers, products = [], []
        if product is None:
            yield module
        else:
            layers.append(cast(SparseLinear, module))
            products.append(product)
    if layers:
        yield _Run(layers, chained(products))


def _product_of(module: nn.Module) -> Product | None:
    """The library's product of a packed layer of float32; none of other modules."""
    found = module.product if type(module) is SparseLinear and module.dtype is torch.float32 else None
    return found if isinstance(found, Product) else None
