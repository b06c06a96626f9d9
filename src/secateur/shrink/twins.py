"""What a plan does to every copy of a model alike, beyond the shapes that surgery sees to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import nn

from secateur._names import tied_names
from secateur._wrappers import unwrapped
from secateur.graph.heads import FreeHeadsAttention, bind_heads_, can_be_freed, free_heads_
from secateur.surgery.admission import copies_among
from secateur.surgery.transaction import Holders

__all__ = ["freed_among", "twins_among", "with_free_heads_"]


def twins_among(model: nn.Module, ema: Holders, names: Iterable[str]) -> list[nn.Module]:
    """The model, and the copies of it among what follows by name, taken out of what wraps them.

    Args:
        model: The model.
        ema: What was passed as `ema`.
        names: Names of tensors that a copy of the model has.
    """
    names = list(names)
    return [model, *(_inside(copy, names) for copy in copies_among(ema) if isinstance(copy, nn.Module))]


def _inside(copy: nn.Module, names: Iterable[str]) -> nn.Module:
    """The module that has tensors of these names: a copy of the model itself, or what it wraps."""
    inner = unwrapped(copy)
    wrapped = inner._modules.get("module")
    known = {name for several in tied_names(inner).values() for name in several} | {n for n, _ in inner.named_buffers()}
    return inner if wrapped is None or known.issuperset(names) else _inside(wrapped, names)


def with_free_heads_(module: nn.Module, scale: float | None = None) -> Callable[[], None]:
    """Give an attention module free heads, and another scale than its own if one is given; the call that undoes it."""
    if not isinstance(module, nn.MultiheadAttention) or isinstance(module, FreeHeadsAttention):
        return lambda: None
    same = module._qkv_same_embed_dim
    free_heads_(module)
    if scale is not None:
        module.scale = scale  # type: ignore[assignment]  # of the class that it has just taken on
    return partial(bind_heads_, module, same)


def freed_among(model: nn.Module, changed: Iterable[str]) -> tuple[str, ...]:
    """Names of the attention modules that own a tensor which changes, and can have free heads."""
    names = set(changed)
    return tuple(
        prefix
        for prefix, module in model.named_modules()
        if can_be_freed(module)
        and any((f"{prefix}.{name}" if prefix else name) in names for name, _ in module.named_parameters())
    )
