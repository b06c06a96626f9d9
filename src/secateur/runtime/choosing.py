"""Which format a layer gets: the fastest of those that can hold its weight, measured here and now."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS
from secateur.runtime.norms import has_hooks
from secateur.runtime.profile_times import latencies
from secateur.runtime.recipe import CHANNELS_LAST, geometry_of, is_transposed, layer_weight, packed_layer
from secateur.runtime.zeros import sparsity_of

__all__ = ["LAYERS", "Choice", "best_of", "can_have_channels_last", "choose", "obstacle"]

LAYERS = (nn.Linear, nn.Conv2d)
"""Layers that have formats; transformers' Conv1D is the third."""

_LEAST_SPARSITY = 0.3
_SECONDS = 0.03  # of one format of one layer
_CALLS = 3  # of different shapes that count


@dataclass(frozen=True)
class Choice:
    """What was measured of one layer.

    Args:
        format: The name of the format, ``"dense"`` for none.
        seconds: Format, or ``"dense"`` -> seconds of the calls of one run.
        why: Why the layer stays dense.
    """

    format: str = "dense"
    seconds: Mapping[str, float] | None = None
    why: str = ""

    @property
    def speedup(self) -> float:
        """How many times faster than dense the format is, by itself."""
        return self.seconds["dense"] / self.seconds[self.format] if self.seconds else 1.0


def obstacle(layer: nn.Module) -> str:
    """Why a layer has no formats, whatever its zeros are; ``""`` if it has."""
    if type(layer) not in (*LAYERS, nn.modules.linear.NonDynamicallyQuantizableLinear) and not is_transposed(layer):
        return f"{type(layer).__name__} has no sparse format"
    if has_hooks(layer):
        return "it has hooks"
    if layer.weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"weights in {layer.weight.dtype}"
    if isinstance(layer, nn.Conv2d):
        even = layer.padding == "same" and any(w % 2 == 0 for w in layer.kernel_size)
        if layer.groups > 1 or layer.padding_mode != "zeros" or even:
            return "convolution in groups" if layer.groups > 1 else "padding of another kind"
    return ""


def can_have_channels_last(layer: nn.Module) -> bool:
    """Whether a layer is a convolution that can be turned to channels last, and stays one of torch's own."""
    if type(layer) is not nn.Conv2d or has_hooks(layer):
        return False
    return not geometry_of(layer).overhangs(layer.kernel_size)


def choose(
    layer: nn.Module,
    shapes: Sequence[torch.Size],
    *,
    relu: bool,
    values: torch.dtype,
    margin: float,
    allowed: Collection[str] | None,
    between: Callable[[], object],
) -> Choice:
    """Choose the format of one layer.

    Args:
        layer: The layer.
        shapes: Of its input at each call in one run of the model.
        relu: Whether a ReLU follows that it can compute itself.
        values: Dtype of the values.
        margin: By which part of the dense time a format has to be faster.
        allowed: Names of formats to try; none: all.
        between: Called between two measurements.

    Returns:
        The choice.
    """
    why = obstacle(layer) or ("" if shapes else "it was not called")
    found = [] if why else _candidates(layer, shapes, with_dense=margin >= 0)
    names = [name for name in found if allowed is None or name in allowed]
    if not why and sparsity_of(layer.get_parameter("weight")) < _LEAST_SPARSITY:
        why = f"less than {_LEAST_SPARSITY:.0%} zeros"
    tried: dict[str, Callable[[Tensor], Tensor]] = {
        name: packed_layer(layer, name, values, relu=relu) for name in names
    }
    if shapes and can_have_channels_last(layer) and (allowed is None or CHANNELS_LAST in allowed):
        last = copy.deepcopy(layer).to(memory_format=torch.channels_last)
        tried[CHANNELS_LAST] = _with_relu(last) if relu else last
    if not tried:
        return Choice(why=why or "no format holds it")
    seed = torch.Generator().manual_seed(0)
    dtype = layer.get_parameter("weight").dtype
    inputs = [torch.randn(shape, generator=seed).to(dtype) for shape in list(dict.fromkeys(shapes))[:_CALLS]]
    tried = {"dense": _with_relu(layer) if relu else layer, **tried}
    seconds = _seconds({name: _run(each, inputs) for name, each in tried.items()}, between)
    best = best_of(seconds, margin)
    return Choice(best, seconds, why=(why or "no format is faster") if best == "dense" else "")


def best_of(seconds: Mapping[str, float], margin: float) -> str:
    """The fastest format, or ``"dense"`` if none is faster than that by the margin."""
    best = min(seconds.keys() - {"dense"}, key=lambda name: seconds[name], default="dense")
    return best if seconds[best] <= (1 - margin) * seconds["dense"] else "dense"


def _candidates(layer: nn.Module, shapes: Sequence[torch.Size], *, with_dense: bool) -> Iterator[str]:
    """The formats that can hold a layer's weight and are worth a trial; those that keep zeros only if asked for."""
    weight = layer_weight(layer)
    is_sparse = sparsity_of(weight) >= _LEAST_SPARSITY
    if weight.dim() == 2:
        rows = min(shape[:-1].numel() for shape in shapes)
        for name, linear in LINEAR_FORMATS.items():
            is_worth = linear.rows[0] <= rows <= linear.rows[1] and (with_dense if linear.is_dense else is_sparse)
            if is_worth and not linear.absence() and not linear.misfit(weight):
                yield name
        return
    for name, conv in CONV_FORMATS.items():
        is_worth = with_dense if conv.is_dense else is_sparse
        if is_worth and not conv.absence() and not conv.misfit(weight, geometry_of(layer)):
            yield name


def _seconds(runs: Mapping[str, Callable[[], object]], between: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each run."""
    timed = latencies(list(runs.values()), _SECONDS * len(runs), between=between)
    return {name: latency.median / 1e3 for name, latency in zip(runs, timed, strict=True)}


def _with_relu(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The dense layer and a ReLU."""
    return lambda x: layer(x).relu_()


def _run(layer: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """One call for each input."""

    def run() -> None:
        for x in inputs:
            layer(x)

    return run
