"""Zeros stay zero: what happens before and after every optimizer's step.

Two global hooks of ``torch.optim`` serve every optimizer that holds a masked parameter, whether it was named to
`prune_` or made later (for a deep copy, in a resumed run). Gradients are masked as they arrive, by a hook on each
parameter, so that clipping and momentum see kept entries only. Then, around a step:

- *before*, gradients, weights and state that have been changed since they were masked are masked again;
- *after*, every masked weight is set to zero, unless that is known to be so already.

It is known where the step is elementwise (a weight of 0 with gradient 0 and cleared state stays 0) and nothing has
interfered, as version counters show. That matters for large tensors only, where masking once more would cost as much as
masking the gradient; there a window that moves on with each step is looked at instead.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from secateur.masks import registry
from secateur.surgery.rules import rule_of

if TYPE_CHECKING:
    from secateur.masks.mask import Mask

__all__ = ["desk_of", "desks_with", "settle", "start"]


@dataclass
class Desk:
    """What is known about one optimizer.

    Args:
        masks: Masks of the parameters that it holds.
        settled: Masks (by key) at whose masked places its state has been cleared since they were set.
        neutral_due: Step at which second moments at masked places get their neutral value again, by the mask's key.
        step: Steps that were seen.
    """

    masks: list[Mask] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    neutral_due: dict[int, int] = field(default_factory=dict)
    step: int = 0
    seen: tuple[int, int] = (-1, -1)
    with_closure: bool = False

    def unsettle(self, *_: object) -> None:
        """Forget that the state has been cleared: it has been loaded, or a mask has changed."""
        self.settled.clear()
        self.neutral_due.clear()


_DESKS: weakref.WeakKeyDictionary[Optimizer, Desk] = weakref.WeakKeyDictionary()
_started = False


def start() -> None:
    """Have torch call us around every optimizer's step; once a process."""
    global _started
    if not _started:
        register_optimizer_step_pre_hook(torch.compiler.disable(_before))
        register_optimizer_step_post_hook(torch.compiler.disable(_after))
        _started = True


def desk_of(optimizer: Optimizer) -> Desk:
    """What is known about an optimizer, with its list of masks up to date."""
    desk = _DESKS.get(optimizer)
    if desk is None:
        desk = _DESKS[optimizer] = Desk()
        optimizer.register_load_state_dict_post_hook(desk.unsettle)
    seen = registry.epoch(), sum(len(group["params"]) for group in optimizer.param_groups)
    if seen != desk.seen:
        found = (registry.mask_of(p) for group in optimizer.param_groups for p in group["params"])
        desk.masks = [mask for mask in found if mask is not None]
        desk.settled &= {mask.key for mask in desk.masks}
        desk.seen = seen
    return desk


def desks_with(mask: Mask) -> list[tuple[Optimizer, Desk]]:
    """Optimizers, among those that have been seen, that hold the mask's parameter."""
    return [(optimizer, desk) for optimizer, desk in _DESKS.items() if any(m is mask for m in desk.masks)]


def settle(optimizer: Optimizer, desk: Desk) -> None:
    """Clear the state at places that were masked since it was last cleared, and keep neutral values from decaying."""
    from secateur.masks.state import clear_state_, fill_neutral_, neutral_period

    for mask in desk.masks:
        key = mask.key
        if key not in desk.settled:
            clear_state_(optimizer, mask)
            desk.settled.add(key)
            desk.neutral_due[key] = desk.step + 1
        if desk.step >= desk.neutral_due.get(key, 0) and fill_neutral_(optimizer, mask):
            group = next(g for g in optimizer.param_groups if any(p is mask.parameter for p in g["params"]))
            desk.neutral_due[key] = desk.step + neutral_period(group)


def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before any optimizer's step."""
    desk = desk_of(optimizer)
    if not desk.masks:
        return
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    desk.with_closure = closure is not None
    settle(optimizer, desk)
    for mask in desk.masks:
        mask.prepare_step()
    desk.step += 1


def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """After any optimizer's step."""
    desk = desk_of(optimizer)
    if not desk.masks:
        return
    elementwise = rule_of(optimizer).elementwise and not desk.with_closure
    sound = {id(p) for g in optimizer.param_groups if elementwise and _is_tame(g) for p in g["params"]}
    for mask in desk.masks:
        untouched = mask.grad_is_clean()
        if not untouched:
            desk.settled.discard(mask.key)
        mask.finish_step(sound=untouched and id(mask.parameter) in sound and not _is_coarse(mask.parameter))


def _is_tame(group: dict[str, Any]) -> bool:
    """Whether the options keep 0 · lr / (0 + eps) at 0."""
    lr = group.get("lr", 0.0)
    return group.get("eps", 1.0) > 0.0 and (isinstance(lr, Tensor) or math.isfinite(lr))


def _is_coarse(parameter: Tensor) -> bool:
    """Whether the dtype is one in which a usual eps is 0."""
    return parameter.dtype == torch.float16 or parameter.itemsize == 1
