"""Which parameters can be masked, and which are when nothing is said."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._names import Selector, match, owner_of, tied_names
from secateur.surgery.refusals import refuse_tensor

__all__ = ["check_maskable", "default_names", "eligible_names"]

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm)


def eligible_names(
    model: nn.Module, include: Iterable[Selector] | Selector | None, exclude: Iterable[Selector] | Selector | None
) -> list[str]:
    """Names of the parameters to mask.

    Args:
        model: The model.
        include: Globs over dotted names or module types; if left out, all weights: parameters of two or more dims that
            belong to no norm and are no bias. A parameter with several names is meant by any of them.
        exclude: Globs or module types that are left out.

    Returns:
        First names, in the model's order.

    Raises:
        InvalidInputError: A selector matches nothing, or nothing is left.
        UnsupportedError: One of the parameters cannot be masked.
    """
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    chosen = default_names(model) if include is None else [first[n] for n in match(model, _listed(include))]
    dropped = {first[n] for n in match(model, _listed(exclude))} if exclude is not None else set()
    names = [name for name in dict.fromkeys(chosen) if name not in dropped]
    if include is None:
        computed = [name for name in names if _computed_by(model, name)]
        names = [name for name in names if name not in computed]
        if computed and not names:
            check_maskable(model, computed[0])
    if not names:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} is left to mask.",
            parameters=len(first),
            fix="biases and norms are left out by default; include=['*'] takes all parameters",
        )
    for name in names:
        check_maskable(model, name)
    return names


def default_names(model: nn.Module) -> list[str]:
    """First names of all weights: parameters of two or more dims that belong to no norm and are no bias."""
    return [name for name, parameter in model.named_parameters() if _is_weight(model, name, parameter)]


def check_maskable(model: nn.Module, name: str, mask: Tensor | None = None) -> None:
    """Refuse a parameter or a mask that cannot be held.

    Raises:
        UnsupportedError: The parameter is lazy, sparse, quantized …, or a weight is computed from it.
        InvalidInputError: The mask is not bool, or the call is made inside inference mode.
    """
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        raise InvalidInputError(
            f"the mask for {name!r} is not a bool tensor (True = kept).",
            found=mask.dtype if isinstance(mask, Tensor) else type(mask).__name__,
            fix="mask != 0 makes one of numbers",
        )
    why = _computed_by(model, name)
    if why:
        raise UnsupportedError(
            f"cannot mask {name!r}: it is computed by, or is part of, {why}.",
            why="zeros in the parts of a computed weight are no zeros in the weight",
            fix="remove the parametrization first (remove_parametrizations, prune.remove), then mask the plain weight",
        )
    module, leaf = owner_of(model, name)
    parameter = module._parameters.get(leaf)
    if parameter is not None:
        refuse_tensor(name, parameter)


def _is_weight(model: nn.Module, name: str, parameter: Tensor) -> bool:
    """Whether a parameter is masked when nothing is said."""
    module, leaf = owner_of(model, name)
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        return True
    return parameter.dim() > 1 and "bias" not in leaf and not isinstance(module, _NORMS)


def _computed_by(model: nn.Module, name: str) -> str:
    """Names of the parametrizations, hooks or pruning methods that a parameter is part of or that make it; or ''."""
    prefix, _, _ = name.partition(".parametrizations.")
    path, leaf = (prefix, name[len(prefix) :].split(".")[2]) if ".parametrizations." in name else (None, "")
    if name.startswith("parametrizations."):
        path, leaf = "", name.split(".")[1]
    module, own = owner_of(model, name) if path is None else (model.get_submodule(path), leaf)
    if nn.utils.parametrize.is_parametrized(module, own):
        return ", ".join(type(part).__name__.lstrip("_") for part in _parts(module, own))
    for hook in module._forward_pre_hooks.values():
        made = getattr(hook, "name", None) or getattr(hook, "_tensor_name", None)
        if isinstance(made, str) and own in (made, f"{made}_g", f"{made}_v", f"{made}_orig"):
            return type(hook).__name__
    return ""


def _parts(module: nn.Module, leaf: str) -> list[nn.Module]:
    """The parametrizations of one tensor."""
    parts = module.parametrizations
    return list(parts[leaf].children()) if isinstance(parts, nn.ModuleDict) else []


def _listed(selectors: Iterable[Selector] | Selector) -> list[Selector]:
    """One or several selectors, as a list."""
    return [selectors] if isinstance(selectors, str | type) else list(selectors)
