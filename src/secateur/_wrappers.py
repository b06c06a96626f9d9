"""Modules around modules: those that can be looked through, and those whose inside cannot be changed."""

from __future__ import annotations

import torch
from torch import nn

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError

__all__ = ["refuse_model", "unwrapped"]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` has wrapped, or the module itself."""
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def refuse_model(model: nn.Module) -> None:
    """Refuse models whose parameters are kept in forms of the wrapper's own.

    Raises:
        InvalidInputError: It is no module.
        UnsupportedError: The model is, or contains, such a wrapper.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"a module is needed, not {type(model).__name__}.",
            fix="model, not model.state_dict(); layer, not layer.weight",
        )
    kinds: dict[type, str] = {**_compat.wrappers(), torch.jit.ScriptModule: "its code is compiled, sizes included"}
    for name, module in model.named_modules():
        kind = next((kind for kind in kinds if isinstance(module, kind)), None)
        if kind is not None:
            raise UnsupportedError(
                f"cannot change a model inside {kind.__name__}: {kinds[kind]}.",
                module=name or type(module).__name__,
                fix="change the plain model first, then wrap it",
            )
