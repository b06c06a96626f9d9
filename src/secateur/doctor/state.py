"""Which entries of an optimizer's state have the shape of another time, and which shape that was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from secateur.doctor.numbers import is_zero
from secateur.doctor.setup import Slot

__all__ = ["FEW_STEPS", "flat_misfit", "is_idle", "misfits", "old_shape"]

_MOMENTS = ("exp_avg", "momentum_buffer", "sum", "square_avg", "exp_inf", "prev")
"""Entries that are zero as long as every gradient was zero."""

FEW_STEPS = 4
"""Zero gradients in fewer steps tell nothing: behind a weight that starts at zero (LoRA, zero-init residuals) the first
gradient is zero, and the next ones are as long as a warm-up holds the learning rate at zero."""

_SQUEEZED = ("exp_avg_sq_row", "exp_avg_sq_col")


def misfits(slot: Slot) -> Iterator[tuple[str, Tensor]]:
    """Entries (name, tensor) of a slot's state that belong to a parameter of another shape.

    Only optimizers of ``torch.optim``, their subclasses, and Adafactor of transformers are judged: what others keep in
    which shape is not known.
    """
    if not _is_known(slot.optimizer):
        return
    for name, value in slot.optimizer.state.get(slot.tensor, {}).items():
        if isinstance(value, Tensor) and value.numel() > 1 and not _fits(name, value, slot.tensor):
            yield name, value


def _is_known(optimizer: object) -> bool:
    """Whether the shapes of its state are known; LBFGS keeps flat vectors, see `flat_misfit`."""
    if isinstance(optimizer, torch.optim.LBFGS):
        return False
    homes = [kind.__module__ for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer]
    return any(f"{home}.".startswith("torch.optim.") for home in homes) or _is_hf(optimizer)


def _is_hf(optimizer: object) -> bool:
    """Whether it is Adafactor of transformers."""
    return any(f"{k.__module__}.{k.__name__}" == "transformers.optimization.Adafactor" for k in type(optimizer).__mro__)


def _fits(name: str, value: Tensor, parameter: Tensor) -> bool:
    """Whether an entry has the parameter's shape, or that of a mean over some of its dims."""
    if name in _SQUEEZED:
        shape = tuple(parameter.shape)
        return tuple(value.shape) == (shape[:-1] if name.endswith("row") else shape[:-2] + shape[-1:])
    sizes = zip(value.shape, parameter.shape, strict=False)
    return value.dim() == parameter.dim() and all(v in (p, 1) for v, p in sizes)


def old_shape(state: Mapping[str, Any], parameter: Tensor) -> torch.Size:
    """The shape that the parameter had when the state was made."""
    sizes = list(parameter.shape)
    alike = [v for v in state.values() if isinstance(v, Tensor) and v.dim() == parameter.dim() and v.numel() > 1]
    for dim in range(parameter.dim()):
        found = [value.shape[dim] for value in alike if value.shape[dim] > 1]
        sizes[dim] = found[0] if found else sizes[dim]
    return torch.Size(sizes)


def flat_misfit(optimizer: object) -> tuple[int, int] | None:
    """LBFGS keeps flat vectors over all its parameters: their length and the parameters', if these differ."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return None
    parameters = optimizer.param_groups[0]["params"]
    total = sum(p.numel() * (2 if p.is_complex() else 1) for p in parameters)
    kept = optimizer.state.get(parameters[0], {}).get("prev_flat_grad") if parameters else None
    cached = getattr(optimizer, "_numel_cache", None)
    lengths = [kept.numel() if isinstance(kept, Tensor) else total, total if cached is None else int(cached)]
    return next(((length, total) for length in lengths if length != total), None)


def is_idle(slot: Slot) -> bool:
    """Whether a parameter's moments say that it has had nothing but zero gradients, in `FEW_STEPS` or more."""
    state = slot.optimizer.state.get(slot.tensor, {})
    moments = [v for k, v in state.items() if isinstance(v, Tensor) and k in _MOMENTS and not v.is_meta]
    steps = state.get("step", 0)
    return bool(moments) and float(steps) >= FEW_STEPS and all(is_zero(moment) for moment in moments)
