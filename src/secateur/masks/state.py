"""What an optimizer's state holds at masked places, so that nothing is carried over from before the mask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from secateur.surgery.rules import rule_of

__all__ = ["clear_state_", "fill_neutral_", "freshen_state_", "neutral_period"]


def clear_state_(optimizer: Optimizer, mask: Mask) -> None:
    """Zero the momenta and other per-weight entries at masked places; entries that the table says to leave are left.

    Args:
        optimizer: The optimizer; one that has not stepped yet has no state, and nothing happens.
        mask: The mask of one of its parameters.
    """
    row = rule_of(optimizer)
    for name, value in _entries(optimizer, mask):
        if row.entry(name).masked is not None:
            mask.clear_(value)
    if isinstance(optimizer, torch.optim.LBFGS):
        _clear_flat_(optimizer)


def fill_neutral_(optimizer: Optimizer, mask: Mask) -> bool:
    """Give second moments their neutral value at masked places (see `secateur.surgery.Entry`).

    Returns:
        Whether there was any state yet.
    """
    row, found = rule_of(optimizer), False
    for name, value in _entries(optimizer, mask):
        found = True
        neutral = row.entry(name).masked
        if neutral:
            value.masked_fill_(~mask.value, neutral)
    return found


def freshen_state_(optimizer: Optimizer, mask: Mask, grown: Tensor) -> None:
    """Give regrown weights the state of weights without history.

    Args:
        optimizer: The optimizer.
        mask: The mask of one of its parameters.
        grown: Bool of the parameter's shape: entries that are kept now and were masked before.
    """
    row = rule_of(optimizer)
    group = _group(optimizer, mask.parameter)
    for name, value in _entries(optimizer, mask):
        fresh = row.entry(name).fresh
        if fresh is None:
            value.copy_(torch.where(grown, mask.parameter.detach(), value))
        else:
            value.masked_fill_(grown, float(group[fresh]) if isinstance(fresh, str) else fresh)


def neutral_period(group: Mapping[str, Any]) -> int:
    """Steps after which a neutral value must be given again, since gradients of zero let it decay to a thousandth."""
    decay = float(group["betas"][1]) if "betas" in group else float(group.get("alpha", group.get("rho", 0.0)))
    if not 0.0 < decay < 1.0:
        return 1 << 30 if decay <= 0.0 else 1
    return max(1, int(math.log(1e-3) / math.log(decay)))


def _group(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """The group that holds the parameter."""
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


def _entries(optimizer: Optimizer, mask: Mask) -> Iterator[tuple[str, Tensor]]:
    """Entries of the state that have one value a weight."""
    parameter = mask.parameter
    for name, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
            yield name, value


def _clear_flat_(optimizer: torch.optim.LBFGS) -> None:
    """Drop the history of LBFGS if it holds anything at masked places: its pairs of vectors would not fit together."""
    parameters = optimizer.param_groups[0]["params"]
    masked = ~torch.cat([_flat_mask(parameter) for parameter in parameters])
    history = optimizer.state.get(parameters[0], {})
    vectors = [v for value in history.values() for v in (value if isinstance(value, list) else [value])]
    if any(isinstance(v, Tensor) and v.shape == masked.shape and bool(v[masked].any()) for v in vectors):
        history.clear()


def _flat_mask(parameter: Tensor) -> Tensor:
    """One parameter's stretch of the mask over the flat vectors; complex numbers are two entries each."""
    mask = mask_of(parameter)
    kept = torch.ones(parameter.numel(), dtype=torch.bool) if mask is None else mask.value.flatten().cpu()
    kept = kept.to(parameter.device)
    return kept.repeat_interleave(2) if parameter.is_complex() else kept
