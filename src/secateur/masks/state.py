"""What an optimizer's state holds at masked places, so that nothing is carried over from before the mask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from secateur.surgery.rules import Entry, rule_of

__all__ = ["clear_state_", "fill_neutral_", "freshen_state_", "neutral_period", "plain_state", "state_evidence"]

_FADED = 1e-3
"""What is left of a neutral value when it is due again."""

_NEVER = 1 << 60


def clear_state_(optimizer: Optimizer, mask: Mask, *, neutral: bool = True) -> None:
    """Zero the momenta and other per-weight entries at masked places; entries that the table says to leave are left.

    Args:
        optimizer: The optimizer; one that has not stepped yet has no state, and nothing happens.
        mask: The mask of one of its parameters.
        neutral: Zero those, too, that will be given a neutral value.
    """
    row = rule_of(optimizer)
    for name, value in _entries(optimizer, mask):
        masked = row.entry(name).masked
        if masked == 0.0 or (neutral and masked is not None):
            mask.bits.clear_(value)
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
            mask.bits.fill_(value, _number(neutral, value))
    return found


def freshen_state_(optimizer: Optimizer, mask: Mask, grown: Tensor) -> None:
    """Give regrown weights the state of weights without history.

    Args:
        optimizer: The optimizer.
        mask: The mask of one of its parameters.
        grown: Bool of the parameter's shape: entries that are masked now and are about to be kept.
    """
    row, group = rule_of(optimizer), group_of(optimizer, mask.parameter)
    for name, value in _entries(optimizer, mask):
        number = _fresh(row.entry(name), group)
        if number == 0.0 and row.entry(name).masked is not None:
            mask.bits.clear_(value)  # all that is masked, which takes a fraction of the time
        else:
            value.masked_fill_(grown, _number(number, value))


def plain_state(optimizer: Optimizer, masks: Iterable[Mask], found: dict[str, Any]) -> dict[str, Any]:
    """A state dict of the optimizer in which masked weights have the state of weights without history.

    The neutral value of second moments is our own affair: whoever loads this without the masks, or lifts them before
    the first step, must not find it.

    Args:
        optimizer: The optimizer.
        masks: Masks of its parameters.
        found: What its ``state_dict()`` was about to return; left as it is.
    """
    row, state = rule_of(optimizer), dict(found["state"])
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for mask in masks:
        place = next(i for i, parameter in enumerate(held) if parameter is mask.parameter)
        group = group_of(optimizer, mask.parameter)
        for name, value in _entries(optimizer, mask) if place in state else ():
            number = _fresh(row.entry(name), group)
            if (row.entry(name).masked or number) and state[place].get(name) is value:
                plain = value.clone()
                mask.bits.fill_(plain, _number(number, plain))
                state[place] = {**state[place], name: plain}
    return {**found, "state": state}


def neutral_period(group: Mapping[str, Any]) -> int:
    """Steps after which a neutral value must be given again, since gradients of zero let it fade.

    Example:
        >>> neutral_period({"betas": (0.9, 0.999)}), neutral_period({"alpha": 0.99})
        (6904, 687)
    """
    decay = float(group["betas"][1]) if "betas" in group else float(group.get("alpha", group.get("rho", 1.0)))
    if decay >= 1.0:
        return _NEVER
    return max(1, int(math.log(_FADED) / math.log(decay))) if decay > 0.0 else 1


def state_evidence(optimizer: Optimizer, mask: Mask) -> tuple[tuple[int, int], ...]:
    """What changes when the state of a mask's parameter is replaced, or written to in a way that autograd can see."""
    first = optimizer.param_groups[0]["params"][0] if isinstance(optimizer, torch.optim.LBFGS) else mask.parameter
    found = []
    for value in optimizer.state.get(first, {}).values():  # runs twice a step
        if isinstance(value, Tensor):
            if value.dim():
                found.append((id(value), value._version))
        elif isinstance(value, list):
            found.append((id(value), 0))
    return tuple(found)


def group_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """The group that holds the parameter."""
    return next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))


def _entries(optimizer: Optimizer, mask: Mask) -> Iterator[tuple[str, Tensor]]:
    """Entries of the state that have one value a weight."""
    row, parameter = rule_of(optimizer), mask.parameter
    for name, value in optimizer.state.get(parameter, {}).items():
        if (
            isinstance(value, Tensor)
            and value.shape == parameter.shape
            and value.dim()
            and not row.entry(name).is_shaped
        ):
            yield name, value


def _fresh(entry: Entry, group: Mapping[str, Any]) -> float:
    """What an entry holds for a weight without history."""
    fresh = entry.fresh
    return float(group[fresh]) if isinstance(fresh, str) else fresh or 0.0  # None: a copy of weights that are 0


def _number(number: float, value: Tensor) -> float | complex:
    """A number for a moment; those of complex weights are two, of the real and of the imaginary part."""
    return complex(number, number) if value.is_complex() else number


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
    kept = torch.ones(parameter.shape, dtype=torch.bool) if mask is None else mask.bits.dense
    kept = kept.flatten().to(parameter.device)
    return kept.repeat_interleave(2) if parameter.is_complex() else kept
