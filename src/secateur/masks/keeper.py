"""Zeros stay zero: what happens before and after every optimizer's step.

Two global hooks of ``torch.optim`` serve every optimizer that holds a masked parameter, whether it was named to
`prune_` or made later (for a deep copy, in a resumed run). Gradients are masked as they arrive, by a hook on each
parameter, so that clipping and momentum see kept entries only. Then, around a step:

- *before* the update (and after the closure, if there is one), gradients, weights and state that have been changed
  since they were masked are masked again;
- *after*, every masked weight is set to zero, unless that is known to be so already.

Whoever changes masks as training goes on is called by the same two hooks (see `secateur.masks.listening`).

An optimizer with a true attribute `enforces_masks` does all this by itself, as a part of its step: it reads masked
gradients as 0, remembers nothing at masked places, and leaves the weights there at 0. Its masks are left to it.

It is known where the step is elementwise (a weight of 0 with gradient 0 and cleared state stays 0) and nothing has
interfered, as version counters show. That matters for large tensors only, where masking once more would cost as much as
masking the gradient; there a window that moves on with each step is looked at before it instead.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from secateur.masks import registry
from secateur.masks.listening import Listener
from secateur.masks.mask import Mask, clear_weights_
from secateur.masks.state import (
    clear_state_,
    fill_neutral_,
    freshen_state_,
    group_of,
    neutral_period,
    plain_state,
    state_evidence,
)
from secateur.surgery.rules import rule_of

__all__ = ["Desk", "desks_with", "meet", "settle"]


@dataclass
class Desk:
    """What is known about one optimizer.

    Args:
        masks: Masks in force of the parameters that it holds; none if it enforces them by itself.
        left_to_it: Those that it enforces by itself.
        settled: Key of each mask at whose masked places the state has been cleared since it was set, and what the state
            looked like then (see `state_evidence`).
        neutral_due: Step at which second moments at masked places get their neutral value again, by the mask's key.
        step: Steps that were seen.
        epoch: `registry.epoch` when this was up to date.
        listeners: Who is called around its steps, and the masks of its parameters that are the reason.
    """

    masks: list[Mask] = field(default_factory=list)
    left_to_it: list[Mask] = field(default_factory=list)
    settled: dict[int, object] = field(default_factory=dict)
    neutral_due: dict[int, int] = field(default_factory=dict)
    step: int = 0
    epoch: int = -1
    listeners: list[tuple[Listener, list[Mask]]] = field(default_factory=list)
    _seen: object = None

    def refresh(self, optimizer: Optimizer) -> None:
        """Bring the list of masks up to date with the optimizer's groups."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        by_itself = bool(getattr(optimizer, "enforces_masks", False))
        seen = registry.epoch(), by_itself, [id(p) for p in parameters]
        if seen == self._seen:
            return
        found = [mask for p in parameters if (mask := registry.mask_of(p)) is not None]
        enforced = [mask for mask in found if mask.is_enforced]
        self.masks, self.left_to_it = ([], enforced) if by_itself else (enforced, [])
        self.listeners = _listeners_of(found)
        keys = {mask.key for mask in self.masks}
        self.settled = {key: value for key, value in self.settled.items() if key in keys}
        self.neutral_due = {key: value for key, value in self.neutral_due.items() if key in keys}
        self._seen, self.epoch = seen, registry.epoch()

    def is_settled(self, optimizer: Optimizer, mask: Mask) -> bool:
        """Whether the state has been cleared at masked places and is still the same."""
        return self.settled.get(mask.key, _NEVER) == state_evidence(optimizer, mask)


def _listeners_of(masks: Iterable[Mask]) -> list[tuple[Listener, list[Mask]]]:
    """Each listener once, with the masks that it listens through."""
    found: dict[int, tuple[Listener, list[Mask]]] = {}
    for mask in masks:
        if mask.listener is not None:
            found.setdefault(id(mask.listener), (mask.listener, []))[1].append(mask)
    return list(found.values())


_NEVER = object()
_DESKS: weakref.WeakKeyDictionary[Optimizer, Desk] = weakref.WeakKeyDictionary()


def meet(optimizers: Iterable[Optimizer]) -> None:
    """Know optimizers from now on, not only from their next step."""
    for optimizer in optimizers:
        _desk_of(optimizer)


def desks_with(mask: Mask) -> list[tuple[Optimizer, Desk]]:
    """Optimizers, among those that are known, that hold the mask's parameter and leave its mask to us."""
    return [(optimizer, desk) for optimizer, desk in _all_desks() if any(held is mask for held in desk.masks)]


def settle(masks: Iterable[Mask]) -> None:
    """Clear the state that known optimizers have at the masked places of some masks, where it has not been done yet.

    Those that enforce masks by themselves are told to, if they have a method ``follow_masks``.
    """
    changed = list(masks)
    for mask in changed:
        for optimizer, desk in desks_with(mask):
            _settle(optimizer, desk, [mask])
    for optimizer, desk in _all_desks():
        if any(held is mask for held in desk.left_to_it for mask in changed):
            getattr(optimizer, "follow_masks", _do_nothing)()


@registry.at_lifting
def _lift(mask: Mask) -> None:
    """Give the weights of a mask that will be held no longer the state of weights without history.

    State that has been loaded since it was cleared is left: it may belong to weights that are loaded next.
    """
    for optimizer, desk in desks_with(mask):
        if desk.is_settled(optimizer, mask) and mask.parameter.shape == mask.bits.shape:
            freshen_state_(optimizer, mask, ~mask.bits.dense.to(mask.parameter.device))


def _do_nothing() -> None:
    """What an optimizer does that looks at its masks when it steps."""


def _all_desks() -> list[tuple[Optimizer, Desk]]:
    """What is known about each known optimizer."""
    return [(optimizer, _desk_of(optimizer)) for optimizer in list(_DESKS)]


def _desk_of(optimizer: Optimizer) -> Desk:
    """What is known about an optimizer, up to date."""
    desk = _DESKS.get(optimizer)
    if desk is None:
        desk = _DESKS[optimizer] = Desk()
        optimizer.register_state_dict_post_hook(_plain)
    desk.refresh(optimizer)
    return desk


def _plain(optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
    """What a known optimizer gives as its state dict."""
    masks = _desk_of(optimizer).masks
    return plain_state(optimizer, masks, found) if masks else found


def _settle(optimizer: Optimizer, desk: Desk, masks: Iterable[Mask]) -> None:
    """Clear the state at masked places, where it has not been since the mask was set or the state changed."""
    for mask in masks:
        if not desk.is_settled(optimizer, mask):
            _clear(optimizer, desk, mask)


def _clear(optimizer: Optimizer, desk: Desk, mask: Mask) -> None:
    """Clear one parameter's state at masked places."""
    clear_state_(optimizer, mask)
    desk.settled[mask.key] = state_evidence(optimizer, mask)
    desk.neutral_due[mask.key] = 0


def _fill_neutral(optimizer: Optimizer, desk: Desk) -> None:
    """Give second moments at masked places their neutral value, where it is due."""
    for mask in desk.masks:
        if desk.step >= desk.neutral_due[mask.key] and fill_neutral_(optimizer, mask):
            desk.neutral_due[mask.key] = desk.step + neutral_period(group_of(optimizer, mask.parameter))


@registry.at_first_mask
def _start() -> None:
    """Have torch call us around every optimizer's step."""
    why = "masks are held outside the graph: compile the step with fullgraph=False"
    register_optimizer_step_pre_hook(torch.compiler.disable(_before, reason=why))
    register_optimizer_step_post_hook(torch.compiler.disable(_after, reason=why))


def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before any optimizer's step; its closure, if it has one, comes back with masking added."""
    desk = _desk_of(optimizer)
    if not desk.masks and not desk.listeners and not desk.left_to_it:
        return None
    _settle(optimizer, desk, desk.masks)
    _fill_neutral(optimizer, desk)
    _prepare(desk)
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    for listener, held in desk.listeners:
        listener.before_step(optimizer, held, has_closure=callable(closure))
    desk.step += 1
    if not callable(closure):
        return None
    guarded = _guarded(closure, desk)
    return ((args[0], guarded, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": guarded})


def _prepare(desk: Desk) -> None:
    """Weights and gradients are there for an update: those that have been changed are masked again."""
    for mask in desk.masks:
        mask.prepare_step()
    for mask in desk.left_to_it:
        mask.look_at_grad()


def _guarded(closure: Callable[[], Any], desk: Desk) -> Callable[[], Any]:
    """The closure, after which what it has changed is masked again."""

    def guarded() -> Any:
        for listener, held in desk.listeners:
            listener.before_closure(held)
        loss = closure()
        _prepare(desk)
        for listener, held in desk.listeners:
            listener.after_closure(held)
        return loss

    return guarded


def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """After any optimizer's step."""
    desk = _DESKS.get(optimizer)
    if desk is None or desk.epoch != registry.epoch():
        desk = _desk_of(optimizer)
    if desk.masks:
        _hold(optimizer, desk)
    for listener, held in list(desk.listeners):
        listener.after_step(optimizer, held)


def _hold(optimizer: Optimizer, desk: Desk) -> None:
    """Masked weights are zero again, and so is the state at masked places if something got there."""
    elementwise = rule_of(optimizer).elementwise
    wild = {id(p) for g in optimizer.param_groups if elementwise and not _is_tame(g) for p in g["params"]}
    separate = elementwise and _is_alone(optimizer)
    moved = []
    for mask in desk.masks:
        parameter = mask.parameter
        clean = mask.key in desk.settled and mask.grad_is_clean() and id(parameter) not in wild
        if not mask.outlasts(sound=clean and separate and not _is_coarse(parameter)):
            moved.append(mask)
        if not clean:
            mask.clear_grad_()
            _clear(optimizer, desk, mask)
            continue
        if not separate:  # a nan in one gradient may have spread to all, or a hook written something
            clear_state_(optimizer, mask, neutral=False)
        desk.settled[mask.key] = state_evidence(optimizer, mask)
    clear_weights_(moved)


def _is_alone(optimizer: Optimizer) -> bool:
    """Whether nobody else has hooks around the step, which may write to weights or gradients."""
    others = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return not others and len(_global_optimizer_pre_hooks) == len(_global_optimizer_post_hooks) == 1


def _is_tame(group: dict[str, Any]) -> bool:
    """Whether the options keep 0 · (1 − lr · decay) − lr · 0 / (0 + eps) at 0.0, neither nan nor −0.0."""
    lr = group.get("lr", 0.0)
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        return False  # to look at it would make the CPU wait
    return group.get("eps", 1.0) > 0.0 and math.isfinite(lr) and lr * group.get("weight_decay", 0.0) < 1.0


def _is_coarse(parameter: Tensor) -> bool:
    """Whether the dtype is one in which a usual eps is 0."""
    return parameter.dtype == torch.float16 or parameter.itemsize == 1
