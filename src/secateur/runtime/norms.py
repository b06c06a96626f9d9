"""BatchNorm folded into the layer before it: ``γ (Wx + b − μ) / sqrt(v + ε) + β`` is a product with other weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateur._names import put_module
from secateur.runtime.observing import Observed

__all__ = ["fold_", "foldable", "has_hooks"]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def foldable(model: nn.Module, seen: Observed) -> Iterator[tuple[str, str]]:
    """The pairs (layer, BatchNorm) of a model where the norm alone reads what the layer returns.

    Both have to be torch's own classes, called once and without hooks, and the norm has running statistics.
    """
    modules = dict(model.named_modules())
    for path, reader in seen.readers.items():
        layer, norm = modules.get(path), modules.get(reader)
        if type(layer) not in _LAYERS or type(norm) not in _NORMS or has_hooks(layer) or has_hooks(norm):
            continue
        is_flat = type(layer) is not nn.Linear or seen.results.get(path) == 2
        if is_flat and isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
            yield path, reader


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
    return module is not None and bool(module._forward_hooks or module._forward_pre_hooks)
