"""State and gradients of a tensor that was cut by hand: brought to its shape, or dropped where nothing tells how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from secateur._errors import UnknownStateError
from secateur.doctor.origins import kept_in_view
from secateur.doctor.replaced import Link
from secateur.doctor.setup import Slot
from secateur.doctor.state import flat_misfit, misfits, old_shape
from secateur.surgery import Change, Selection
from secateur.surgery.entries import follow_entry
from secateur.surgery.optimizers import state_before_first_step

__all__ = ["Carried", "Outcome", "carried_gradient", "carried_state", "compact", "handed_on", "joined"]

Outcome = Literal["carried", "cut", "dropped", "none"]
"""What became of a state or gradient; ``"none"`` where there was nothing."""


class Carried(NamedTuple):
    """A state after the repair, and what was done to it."""

    state: dict[str, Any]
    outcome: Outcome


def carried_state(name: str, slot: Slot, live: Tensor, selections: Sequence[Selection] | None) -> Carried:
    """The state for `live` of what the optimizer keeps for the tensor of a slot; nothing is changed.

    Args:
        name: Dotted name of the parameter.
        slot: Where the optimizer holds it, or what it has replaced.
        live: The parameter as it is now.
        selections: Which positions of the slot's tensor it has; None if that is not known.

    Returns:
        The state: as it is, cut, or empty (as before the first step) where the positions are not known.
    """
    optimizer, tensor, group = slot.optimizer, slot.tensor, slot.options
    state = dict(optimizer.state.get(tensor, {}))
    if not state:
        return Carried({}, "none")
    if isinstance(optimizer, torch.optim.LBFGS):
        intact = tensor.shape == live.shape and flat_misfit(optimizer) is None
        return Carried(state, "carried") if intact else Carried({}, "dropped")
    cuts: list[tuple[torch.Size, Sequence[Selection] | None]] = []
    if any(misfits(slot)):
        shape = old_shape(state, tensor)
        cuts.append((shape, _kept_by_hand(tensor, shape, state.values())))
    if selections is None or selections:
        cuts.append((tensor.shape, selections))
    for shape, kept in cuts:
        followed = _follow(name, slot, state, shape, kept) if kept is not None else None
        if followed is None:
            return Carried(state_before_first_step(optimizer, live, state, group), "dropped")
        state = followed
    return Carried(state, "cut" if cuts else "carried")


def _follow(
    name: str, slot: Slot, state: Mapping[str, Any], shape: torch.Size, kept: Sequence[Selection]
) -> dict[str, Any] | None:
    """The state after a cut, None if an entry has no rule."""
    change = Change(name, torch.empty(shape, device="meta"), tuple(kept))
    try:
        return {key: follow_entry(slot.optimizer, key, value, change, slot.options) for key, value in state.items()}
    except UnknownStateError:
        return None


def _kept_by_hand(tensor: Tensor, shape: torch.Size, others: Any) -> tuple[Selection, ...] | None:
    """Which positions a tensor kept in ``p.data = p.data[…]``; a view still lies in the old memory."""
    if tensor.is_meta or tensor.untyped_storage().nbytes() != shape.numel() * tensor.element_size():
        return None
    alike = [t for t in others if isinstance(t, Tensor) and t.shape == shape and t.layout == torch.strided]
    strides = alike[0].stride() if alike else torch.empty(shape, device="meta").stride()
    return kept_in_view(tensor, shape, strides)


def carried_gradient(parameter: Tensor) -> tuple[Tensor | None, Outcome]:
    """The gradient of a parameter in the parameter's shape, None where it has none or the positions are not known."""
    gradient = parameter.grad
    if gradient is None:
        return None, "none"
    if gradient.shape == parameter.shape:
        return compact(gradient, ()), "carried"
    kept = _kept_by_hand(parameter, gradient.shape, [gradient])
    if kept is None:
        return None, "dropped"
    return Change("", torch.empty(gradient.shape, device="meta"), kept).take(gradient), "cut"


def handed_on(link: Link) -> Tensor | None:
    """The gradient that the old tensor of a link has and the new one lacks, cut like it; as if changed in place."""
    gradient, old, live, kept = link.slot.tensor.grad, link.slot.tensor, link.live, link.origin.selections
    if live.grad is not None or gradient is None or gradient.shape != old.shape or kept is None:
        return None
    for selection in kept:
        gradient = selection.take(gradient)
    fits = (gradient.shape, gradient.dtype, gradient.device) == (live.shape, live.dtype, live.device)
    return gradient if fits else None


def joined(old: Tensor, new: Tensor, selections: Sequence[Selection]) -> Tensor | None:
    """What both halves of a tie have accumulated, added up in the shape of the new one."""
    gradient = old.grad if old.grad is not None and old.grad.shape == old.shape else None
    for selection in selections:
        gradient = None if gradient is None else selection.take(gradient)
    if gradient is None or new.grad is None or new.grad.shape != new.shape:
        return gradient if new.grad is None or new.grad.shape != new.shape else new.grad
    return gradient + new.grad


def compact(tensor: Tensor, others: Iterable[Tensor]) -> Tensor:
    """The tensor's data, in memory of its own if it is a part of a larger one that none of `others` uses."""
    data = tensor.data
    if data.is_meta or data.layout != torch.strided:
        return data
    storage = data.untyped_storage()
    shared = any(_storage(other) == storage.data_ptr() for other in others if other is not tensor)
    return data if shared or storage.nbytes() <= data.numel() * data.element_size() else data.contiguous().clone()


def _storage(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return 0 if tensor.is_meta or tensor.layout != torch.strided else tensor.untyped_storage().data_ptr()
