"""Every trainable parameter that no optimizer holds, each explained in one way only, so that one check reports it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.optim import Optimizer

from secateur.doctor import replaced
from secateur.doctor.origins import derive
from secateur.doctor.replaced import Link
from secateur.doctor.setup import Setup, Slot
from secateur.doctor.ties import Tie, lost_to
from secateur.surgery.census import census, holds

__all__ = ["Strays", "pruned_modules", "strays"]


@dataclass
class Strays:
    """What the optimizers and the model do not have in common.

    Args:
        pruned: Parameters ``weight_orig`` of `torch.nn.utils.prune` that are not held, with the slot that holds the
            computed weight instead, if one does.
        links: Parameters that replaced what an optimizer holds.
        ties: Parameters that were one with another, which is held.
        foreign: Optimizers that hold nothing of this model.
        unknown: Names of the other parameters that no live optimizer holds.
        orphans: Slots of what the model has lost, that nothing else refers to, and that nothing has replaced.
    """

    pruned: dict[str, Slot | None] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    orphans: list[Slot] = field(default_factory=list)


def strays(setup: Setup) -> Strays:
    """Explain each parameter that is not held, and each tensor that is held and not the model's."""
    free: dict[str, Tensor] = dict(setup.unheld)
    found: dict[Slot, Link] = {}
    result = Strays(pruned=_pruned(setup, free))
    replaced.extend(setup, free, found, (replaced.by_name, replaced.by_values))
    result.ties = list(lost_to(setup, free))
    for tie in result.ties:
        free.pop(tie.new)
    replaced.extend(setup, free, found, (replaced.by_order, replaced.by_shape))
    result.ties += _second_heirs(free, found)
    ordered = [found[slot] for slot in setup.orphans if slot in found]
    result.links = [replaced.with_siblings(link, ordered) for link in ordered]
    result.foreign = list(_foreign(setup, found, free))
    result.unknown = [] if result.foreign else _held_by_none(setup, free)
    explained = {*found, *(slot for slot in result.pruned.values() if slot is not None)}
    result.orphans = [s for s in setup.orphans if s not in explained and id(s.tensor) in setup.abandoned]
    return result


def pruned_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(dotted prefix, module, tensor name) of everything that `torch.nn.utils.prune` has masked."""
    for prefix, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                yield (f"{prefix}." if prefix else ""), module, hook._tensor_name


def _pruned(setup: Setup, free: dict[str, Tensor]) -> dict[str, Slot | None]:
    """Masked originals that are not held; taken out of `free`."""
    found: dict[str, Slot | None] = {}
    for prefix, module, leaf in pruned_modules(setup.model):
        original = free.pop(f"{prefix}{leaf}_orig", None)
        if original is not None:
            computed = getattr(module, leaf, None)
            open_slots = [slot for slot in setup.orphans if slot not in found.values()]
            slots = [s for s in open_slots if s.tensor is computed or _is_computed(s.tensor, original)]
            found[f"{prefix}{leaf}_orig"] = slots[0] if slots else None
    return found


def _is_computed(tensor: Tensor, original: Tensor) -> bool:
    """Whether it can be an older computed weight: of that shape, and no parameter."""
    return tensor.shape == original.shape and not isinstance(tensor, nn.Parameter)


def _second_heirs(free: dict[str, Tensor], found: dict[Slot, Link]) -> list[Tie]:
    """Parameters made from a tensor that another parameter has replaced already: both names were one; out of `free`."""
    ties = []
    for name in list(free):
        for link in found.values():
            origin = derive(free[name], link.slot.tensor) if link.by in ("values", "memory") else None
            if origin is not None:
                ties.append(Tie(name, link.name, "the tensor that the optimizer still holds", origin))
                free.pop(name)
                break
    return ties


def _foreign(setup: Setup, found: dict[Slot, Link], free: dict[str, Tensor]) -> Iterator[Any]:
    """Optimizers that hold nothing that is or was this model's, while something of it is not held."""
    own = {id(p) for p in setup.model.parameters()}
    known = {slot.optimizer for slot in found}
    for optimizer in setup.optimizers:
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        if free and tensors and optimizer not in known and not any(id(p) in own for p in tensors):
            yield optimizer


def _held_by_none(setup: Setup, free: Mapping[str, Tensor]) -> list[str]:
    """Names of those that no live optimizer holds, passed or not."""
    others = _others(setup, free)
    if others:
        gc.collect()  # what is only waiting to be freed trains nothing
        others = _others(setup, free)
    return [name for name, p in free.items() if not any(holds(optimizer, p) for optimizer in others)]


def _others(setup: Setup, free: Mapping[str, Tensor]) -> list[Optimizer]:
    """Live optimizers that were not passed and hold one of the parameters."""
    passed = {id(optimizer) for optimizer in setup.optimizers}
    found = census(free.values()).optimizers if free else []
    return [optimizer for optimizer in found if id(optimizer) not in passed]
