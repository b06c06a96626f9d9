"""Two models side by side: how far their outputs are apart, and how long they and their layers take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur._passes import Inputs, call_with, undisturbed
from secateur.runtime.clock import by_turns

__all__ = ["difference", "num_bytes", "run_seconds", "seconds_in_place"]

_SECONDS = 0.5  # of measuring a pair of models
_RUNS = 7  # in which layers are timed in their places


def num_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers, each once."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The tensors that a model returns."""
    with undisturbed(model):
        torch.manual_seed(0)
        leaves = tree_leaves(call_with(model, inputs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def difference(dense: nn.Module, fast: nn.Module, examples: Sequence[Inputs]) -> float:
    """Largest difference of an output, over the largest absolute output of its tensor."""
    worst = 0.0
    for inputs in examples:
        for one, other in zip(_outputs(dense, inputs), _outputs(fast, inputs), strict=True):
            if one.shape != other.shape:
                return float("inf")
            if one.numel():
                error = (one.double() - other.double()).abs()[~(one.isnan() & other.isnan()) & (one != other)]
                worst = max(worst, float(error.max() / one[one.isfinite()].double().abs().max()) if len(error) else 0.0)
    return worst


def run_seconds(dense: nn.Module, fast: nn.Module, examples: Sequence[Inputs]) -> dict[str, float]:
    """Median seconds of a run of both on all examples."""

    def runner(model: nn.Module) -> Callable[[], object]:
        return lambda: [call_with(model, inputs) for inputs in examples]

    with torch.inference_mode():
        return by_turns({"dense": runner(dense), "fast": runner(fast)}, _SECONDS)


def seconds_in_place(model: nn.Module, paths: Iterable[str], examples: Sequence[Inputs]) -> dict[str, float]:
    """Median seconds of each layer in runs of the model."""
    modules = dict(model.named_modules())
    taken: dict[str, list[float]] = {}
    started: dict[str, float] = {}
    handles = []
    for path in paths:
        if path in modules:
            handles.append(
                modules[path].register_forward_pre_hook(lambda *_, p=path: started.__setitem__(p, time.perf_counter()))
            )
            handles.append(
                modules[path].register_forward_hook(
                    lambda *_, p=path: taken.setdefault(p, []).append(time.perf_counter() - started[p])
                )
            )
    try:
        with torch.inference_mode():
            for _ in range(_RUNS):
                for inputs in examples:
                    call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {path: statistics.median(times) for path, times in taken.items()}
