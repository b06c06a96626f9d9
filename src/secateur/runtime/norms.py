"""BatchNorm folded into the layer before it: ``γ (Wx + b − μ) / sqrt(v + ε) + β`` is a product with other weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateur._names import put_module
from secateur.runtime.observing import Observed

__all__ = ["fold_", "foldable", "has_hooks", "is_pair"]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def foldable(model: nn.Module, seen: Observed) -> Iterator[tuple[str, str]]:
    """The pairs (layer, BatchNorm) of a model where the norm alone reads what the layer returns.

    Both have to be torch's own classes, called once and without hooks, the norm has running statistics, and the layer
    shares no parameter with another.
    """
    modules = dict(model.named_modules())
    owners = Counter(id(p) for module in modules.values() for p in module._parameters.values() if p is not None)
    for path, reader in seen.readers.items():
        layer, norm = modules.get(path), modules.get(reader)
        if not is_pair(layer, norm) or has_hooks(layer) or has_hooks(norm):
            continue
        if any(owners[id(parameter)] > 1 for parameter in modules[path].parameters()):
            continue
        is_flat = type(layer) is not nn.Linear or seen.results.get(path) == 2
        if is_flat and isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
            yield path, reader


def is_pair(layer: nn.Module | None, norm: nn.Module | None) -> bool:
    """Whether two modules are of the kinds that fold together."""
    return type(layer) in _LAYERS and type(norm) in _NORMS


def fold_(model: nn.Module, pairs: Mapping[str, str]) -> None:
    """Fold norms into layers, in double precision; zeros of a weight stay zeros.

    Args:
        model: The model, or a module that holds it.
        pairs: Layer -> norm.
    """
    for path, reader in pairs.items():
        layer, norm = model.get_submodule(path), model.get_submodule(reader)
        weight, bias = _folded(layer, norm)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = nn.Parameter(bias, requires_grad=False)
        put_module(model, reader, nn.Identity().eval())


def _folded(layer: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of layer and norm together."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    mean, variance = (norm.get_buffer(name).double() for name in ("running_mean", "running_var"))
    scale = (variance + norm.eps).rsqrt()  # type: ignore[operator]
    gamma, beta = norm._parameters.get("weight"), norm._parameters.get("bias")
    scale = scale if gamma is None else scale * gamma.double()
    bias = -mean if layer.bias is None else layer.bias.double() - mean  # type: ignore[operator]
    bias = bias * scale if beta is None else bias * scale + beta.double()
    wide = scale.view(-1, *[1] * (weight.dim() - 1))
    return (weight.double() * wide).to(weight.dtype), bias.to(weight.dtype)


def has_hooks(module: nn.Module | None) -> bool:
    """Whether somebody watches, or changes, what a module is given or returns."""
    if module is None:
        return False
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)
