"""What each layer of a model holds and costs, before a plan and after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from secateur.graph.costs import Counter, Product
from secateur.graph.coupling import Coupling
from secateur.graph.labels import Dim
from secateur.graph.trace import named_tensors
from secateur.shrink import GrowPlan, LatencyTable, ShrinkPlan
from secateur.shrink.latency import needs, sizes_of

__all__ = ["Layer", "layers_of", "owner"]

BETWEEN = "between activations"
"""Products that read no tensor of the model, as those of attention do."""

Pair = tuple[int, int]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Layer:
    """One module that owns tensors, with pairs of before and after.

    Args:
        name: Its dotted name; that of the tensor if the model itself owns it.
        shapes: Of its tensor with the most dims.
        parameters: Numbers of parameters; None where it is not known which tensors are some.
        macs: Multiply-accumulate operations; None without an analysis.
        seconds: How long its products take, as a latency table predicts; None without one.
    """

    name: str
    shapes: Shapes = ((), ())
    parameters: Pair | None = None
    macs: Pair | None = None
    seconds: tuple[float, float] | None = None
    _tensors: int = field(default=0, repr=False)

    def add_tensor(self, shapes: Shapes, *, is_parameter: bool | None) -> None:
        """Take in one of its tensors."""
        if not self._tensors or len(shapes[0]) > len(self.shapes[0]):
            self.shapes = shapes
        self._tensors += 1
        if is_parameter is not None:
            old, new = self.parameters or (0, 0)
            before, after = (math.prod(shape) * is_parameter for shape in shapes)
            self.parameters = (old + before, new + after)

    def add_product(self, macs: Pair, seconds: tuple[float, float] | None) -> None:
        """Take in one product that reads it."""
        old, new = self.macs or (0, 0)
        self.macs = (old + macs[0], new + macs[1])
        if seconds is not None:
            before, after = self.seconds or (0.0, 0.0)
            self.seconds = (before + seconds[0], after + seconds[1])


def layers_of(
    plan: ShrinkPlan | GrowPlan, model: nn.Module | None = None, table: LatencyTable | None = None
) -> list[Layer]:
    """The layers in the order of the model; last, products that belong to none of them.

    Args:
        plan: The plan. One that was made here knows the whole model and its products; one from a file knows the tensors
            that change.
        model: The model, before or after the plan, for the others.
        table: How long products take.

    Raises:
        InvalidInputError: The table does not cover a product.
    """
    coupling = getattr(plan, "coupling", None)
    if isinstance(plan, ShrinkPlan) and coupling is not None:
        return list(_analysed(plan, coupling, table).values())
    changed = {name: (shape, _after(plan, name, shape)) for name, shape in plan.fit.shapes.items()}
    parameters = None if model is None else frozenset(name for name, _ in model.named_parameters())
    shapes: dict[str, Shapes] = {}
    for name, tensor in named_tensors(model).items() if model is not None else ():
        shapes[name] = (tuple(tensor.shape), tuple(tensor.shape))
    return list(_layers(shapes | changed, parameters).values())


def _layers(shapes: Mapping[str, Shapes], parameters: frozenset[str] | None) -> dict[str, Layer]:
    """The layers that own tensors of these shapes."""
    layers: dict[str, Layer] = {}
    for name, pair in shapes.items():
        layer = layers.setdefault(owner(name), Layer(owner(name)))
        layer.add_tensor(pair, is_parameter=None if parameters is None else name in parameters)
    return layers


def owner(name: str) -> str:
    """The module that owns a tensor; the tensor's own name if that is the model."""
    return name.rpartition(".")[0] or name


def _after(plan: ShrinkPlan | GrowPlan, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tensor has afterwards."""
    sizes = list(shape)
    kept, added = getattr(plan, "keep", {}).get(name, {}), getattr(plan, "at", {}).get(name, {})
    for dim, positions in kept.items():
        sizes[dim] = len(positions)
    for dim, positions in added.items():
        sizes[dim] += len(positions)
    return tuple(sizes)


def _analysed(plan: ShrinkPlan, coupling: Coupling, table: LatencyTable | None) -> dict[str, Layer]:
    """The layers of a model that was analysed, with what their products cost."""
    counts = coupling.counter(), coupling.counter(plan.units)
    shapes = {name: (tuple(map(counts[0], dims)), tuple(map(counts[1], dims))) for name, dims in coupling.dims.items()}
    layers = _layers(shapes, coupling.parameters)
    grids = None if table is None else [table.grid_for(needed) for needed in needs(coupling)]
    for number, product in enumerate(coupling.products):
        name = _reader(product, coupling)
        seconds = None
        if grids is not None:
            before, after = (grids[number].at(sizes_of(product, count)) for count in counts)
            seconds = (before, after)
        layers.setdefault(name, Layer(name)).add_product(
            (_macs(product, counts[0]), _macs(product, counts[1])), seconds
        )
    return layers


def _reader(product: Product, coupling: Coupling) -> str:
    """The layer of the weight that a product multiplies by: of several that it reads, that with the most of its dims.

    A table of tokens, from which the other factor was read, has one of them. Attention over such factors has none.
    """
    dims = {_roots(dim) for dim in product.dims}
    weights = [name for name in reversed(product.reads) if len(coupling.dims[name]) > 1] or list(product.reads)
    common = {name: sum(_roots(dim) in dims for dim in coupling.dims[name]) for name in weights}
    if len(set(map(owner, weights))) > 1 and not any(common.values()):
        return BETWEEN
    return owner(max(weights, key=common.__getitem__)) if weights else BETWEEN


def _roots(dim: Dim) -> Dim:
    """A dim by the axes whose labels it has."""
    return tuple(axis.root for axis in dim)


def _macs(product: Product, count: Counter) -> int:
    """Multiply-accumulate operations of one product."""
    return math.prod(map(count, product.dims))
