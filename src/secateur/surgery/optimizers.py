"""How optimizers follow: entry by entry, or the one flat history of LBFGS; and how to get at one in a wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur._errors import HolderError
from secateur.surgery.change import Change
from secateur.surgery.edits import Edit, SetAttr, SetItem
from secateur.surgery.entries import follow_entry, unknown_entry
from secateur.surgery.holders import holder

__all__ = ["groups_of", "put_state_", "state_before_first_step", "unwrapped_optimizer"]


def unwrapped_optimizer(obj: object) -> Optimizer:
    """The optimizer itself: Accelerate's and Lightning's wrappers have it as ``.optimizer``, with the same state.

    Raises:
        HolderError: It is no optimizer.
    """
    inner = getattr(obj, "optimizer", None)
    while isinstance(inner, Optimizer) and inner is not obj and inner.state is getattr(obj, "state", None):
        obj, inner = inner, getattr(inner, "optimizer", None)
    if not isinstance(obj, Optimizer):
        raise HolderError(f"{type(obj).__name__} is not an optimizer.", fix="copies of the model are passed as ema=…")
    return obj


def groups_of(optimizer: Optimizer) -> dict[int, Mapping[str, Any]]:
    """The group of each parameter that an optimizer holds, by the parameter's id."""
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


def state_before_first_step(
    optimizer: Optimizer, parameter: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]
) -> dict[str, Any]:
    """What a parameter's state is before the first step: empty, but for Adagrad, which makes it when it is built."""
    if not isinstance(optimizer, torch.optim.Adagrad):
        return {}
    total = torch.full_like(parameter, group["initial_accumulator_value"], requires_grad=False)
    return {"step": torch.zeros_like(state["step"]), "sum": total}


def put_state_(optimizer: Optimizer, parameter: Tensor, state: dict[str, Any]) -> None:
    """Give a parameter its state; none, as before the first step, if it is empty."""
    if state:
        optimizer.state[parameter] = state
    else:
        optimizer.state.pop(parameter, None)


@holder(Optimizer)
def follow_optimizer(optimizer: Optimizer, changes: Sequence[Change]) -> Iterator[Edit]:
    """Every entry of the changed parameters' state, by rule."""
    groups = groups_of(optimizer)
    for change in changes:
        state = optimizer.state.get(change.tensor)
        group = groups.get(id(change.tensor))
        if not state or group is None:
            continue
        for name, value in state.items():
            new = follow_entry(optimizer, name, value, change, group)
            if new is not value:
                yield SetItem(state, name, new)


_FLAT = ("d", "prev_flat_grad", "old_dirs", "old_stps")


@holder(torch.optim.LBFGS)
def follow_lbfgs(optimizer: torch.optim.LBFGS, changes: Sequence[Change]) -> Iterator[Edit]:
    """LBFGS keeps flat vectors over all its parameters, under the first one."""
    groups = groups_of(optimizer)
    mine = {id(change.tensor): change for change in changes if id(change.tensor) in groups}
    if not mine:
        return
    if hasattr(optimizer, "_numel_cache"):  # lost by deepcopy
        yield SetAttr(optimizer, "_numel_cache", None)
    parameters: list[Tensor] = optimizer.param_groups[0]["params"]
    state = optimizer.state.get(parameters[0], {})
    total = sum(p.numel() * (2 if p.is_complex() else 1) for p in parameters)
    for name, value in state.items():
        vectors = [v for v in _listed(value) if isinstance(v, Tensor) and v.numel() > 1]
        if any(name not in _FLAT or v.numel() != total for v in vectors):
            raise unknown_entry(optimizer, name, value, next(iter(mine.values())))
        if vectors:
            taken = [_take_flat(v, parameters, mine) for v in vectors]
            yield SetItem(state, name, taken if isinstance(value, list) else taken[0])


def _listed(value: object) -> Iterable[object]:
    """The members of a list, or the value itself."""
    return value if isinstance(value, list) else [value]


def _take_flat(flat: Tensor, parameters: Sequence[Tensor], changes: Mapping[int, Change]) -> Tensor:
    """One flat vector, with each changed parameter's stretch taken like the parameter; new positions hold 0."""
    stretches, start = [], 0
    for parameter in parameters:
        parts = 2 if parameter.is_complex() else 1
        stretch = flat[start : start + parts * parameter.numel()]
        start += parts * parameter.numel()
        change = changes.get(id(parameter))
        if change is not None:
            shaped = stretch.view(*parameter.shape, parts) if parts == 2 else stretch.view(parameter.shape)
            stretch = change.take(shaped).reshape(-1)
        stretches.append(stretch)
    return torch.cat(stretches)
