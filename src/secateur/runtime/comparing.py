"""Two models side by side: how far their outputs are apart, and how long they and their layers take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from secateur._passes import Inputs, call_with, traceless, undisturbed
from secateur.graph.call import tensors_in
from secateur.runtime.profile_times import latencies
from secateur.shrink.trials import larger_images

__all__ = ["difference", "fails_at_larger_images", "own", "run_seconds", "seconds_in_place"]

_SECONDS = 0.5  # of measuring a pair of models
_RUNS = 7  # in which layers are timed in their places


def own(inputs: Inputs) -> Inputs:
    """Example inputs with memory of their own, as a model may write into what it is given; what was one stays one."""
    copies: dict[int, Tensor] = {}
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor):
            copies.setdefault(id(leaf), leaf.detach().clone())
    made: Inputs = tree_map_only(Tensor, lambda tensor: copies[id(tensor)], inputs)
    return made


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The tensors that a model returns."""
    with undisturbed(model):
        torch.manual_seed(0)
        found = tensors_in(call_with(model, own(inputs)))
    return [tensor.to_dense() if tensor.is_sparse else tensor for tensor in found if tensor.is_floating_point()]


def difference(dense: nn.Module, fast: nn.Module, examples: Sequence[Inputs]) -> float:
    """Largest difference of an output, over the largest absolute output of its tensor."""
    worst = 0.0
    for inputs in examples:
        for one, other in zip(_outputs(dense, inputs), _outputs(fast, inputs), strict=True):
            if one.shape != other.shape:
                return float("inf")
            worst = max(worst, _error(one.double(), other.double()))
    return worst


def fails_at_larger_images(dense: nn.Module, fast: nn.Module, inputs: Inputs) -> bool:
    """Whether a model does not run on images larger than those of the example, which the dense one takes.

    An image of one position is in every memory order at once: code that looks at the order does not fail there.
    """
    found = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and _is_image(leaf)]
    if callable(inputs) or not found:
        return False
    larger: Inputs = tree_map_only(Tensor, lambda leaf: _enlarged(leaf) if _is_image(leaf) else leaf, inputs)
    try:
        _outputs(dense, larger)
    except Exception:  # whatever a model raises at sizes that it is not made for
        return False
    try:
        _outputs(fast, larger)
    except RuntimeError:
        return True
    return False


def _is_image(tensor: Tensor) -> bool:
    """Whether a tensor may be images in a batch."""
    return tensor.dim() == 4 and tensor.is_floating_point()


def _enlarged(images: Tensor) -> Tensor:
    """Noise of an odd height and width, both larger."""
    return larger_images(images, torch.Generator().manual_seed(0)).to(images.dtype)


def _error(one: Tensor, other: Tensor) -> float:
    """Largest difference over the largest finite value of the first; infinite where only one is finite."""
    apart = (one != other) & ~(one.isnan() & other.isnan())
    if not bool(apart.any()):
        return 0.0
    largest = torch.cat([one[one.isfinite()].abs(), one.new_zeros(1)]).max()
    return float(((one - other).abs()[apart].max() / largest).nan_to_num(torch.inf, torch.inf))


def run_seconds(dense: nn.Module, fast: nn.Module, examples: Sequence[Inputs]) -> dict[str, float]:
    """Seconds of a run of both on all examples: their first quartiles, which a busy machine disturbs the least."""

    def runner(model: nn.Module) -> Callable[[], object]:
        return lambda: [call_with(model, inputs) for inputs in examples]

    with traceless(dense), traceless(fast):
        of_dense, of_fast = latencies([runner(dense), runner(fast)], _SECONDS)
    return {"dense": of_dense.quartiles[0] / 1e3, "fast": of_fast.quartiles[0] / 1e3}


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
        with traceless(model), torch.no_grad():
            for _ in range(_RUNS):
                for inputs in examples:
                    call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {path: statistics.median(times) for path, times in taken.items()}
