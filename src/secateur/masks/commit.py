"""Masks put on a model: everything is checked and computed first, then everything changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import HolderError, InvalidInputError, ShapeError
from secateur._wrappers import refuse_model
from secateur.masks import keeper
from secateur.masks.bits import Bits
from secateur.masks.eligible import check_maskable, find, refuse_shared
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from secateur.masks.slots import store
from secateur.masks.state import freshen_state_
from secateur.surgery.refusals import refuse_call

__all__ = ["Optimizers", "check_held", "listed", "put_"]

Optimizers = Optimizer | Iterable[Optimizer] | None
"""One optimizer, several, or none."""


def put_(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    optimizers: Iterable[Optimizer] = (),
    *,
    lean: bool = False,
    restoring: bool = False,
) -> None:
    """Put masks on a model; parameters that have one already get the new one instead, and so do copies that follow.

    Args:
        model: The model.
        masks: Dotted parameter name -> bool mask of the parameter's shape, True = kept.
        optimizers: Optimizers that must hold the trainable ones among the parameters.
        lean: See `prune_`; for parameters that have no mask yet.
        restoring: The masks are those of a checkpoint. Entries that are kept from now on get back what was loaded for
            them, and keep the optimizer state that was loaded. Otherwise they start at 0, without history.

    Raises:
        SecateurError: Something does not fit; nothing has been changed then.
    """
    refuse_call()
    refuse_model(model)
    parameters = _checked(model, masks)
    optimizers = list(optimizers)
    if optimizers:
        check_held(model, parameters, optimizers)
    plans = [p for name, mask in masks.items() for p in _plans(parameters[name], mask, lean=lean, restoring=restoring)]
    keeper.meet(optimizers)
    keeper.settle([plan.carry_out(model) for plan in plans])


@dataclass(frozen=True)
class _Plan:
    """One parameter's new mask.

    Args:
        parameter: The parameter.
        mask: The mask that it has; None if it gets its first one.
        bits: The new mask.
        grown: Entries that are masked now and will be kept; None if there are none.
        restoring: See `put_`.
    """

    parameter: nn.Parameter
    mask: Mask | None
    bits: Bits
    grown: Tensor | None = None
    restoring: bool = False

    def carry_out(self, model: nn.Module) -> Mask:
        """Put the mask in force, with weights, gradients, and the state of regrown weights."""
        if self.mask is None:
            mask = Mask(self.parameter, self.bits)
            store(model, mask)
        else:
            mask = self.mask
            self._replace(mask)
        mask.apply_()
        return mask

    def _replace(self, mask: Mask) -> None:
        """Give the mask its new value."""
        if self.grown is not None:
            self._freshen(mask, self.grown)
        salvage = mask.salvage
        mask.set(self.bits)
        if self.restoring and self.grown is not None and salvage is not None:
            with torch.no_grad():
                self.parameter.copy_(torch.where(self.grown, salvage, self.parameter))

    def _freshen(self, mask: Mask, grown: Tensor) -> None:
        """Give regrown weights the state of weights without history, unless their state has been loaded with them."""
        for optimizer, desk in keeper.desks_with(mask):
            if not self.restoring or desk.is_settled(optimizer, mask):
                freshen_state_(optimizer, mask, grown)


def _plans(parameter: nn.Parameter, new: Tensor, *, lean: bool, restoring: bool) -> Iterator[_Plan]:
    """What is to be done for a parameter, and for copies of it that follow."""
    mask = mask_of(parameter)
    if mask is None:
        yield _Plan(parameter, None, Bits.of(new, parameter, lean=lean))
        return
    for present in (mask, *mask.followers()):
        twin = present.parameter
        grown = new.to(present.bits.device) & ~present.bits.dense
        bits = Bits.of(new, twin, lean=present.bits.lean)
        yield _Plan(twin, present, bits, grown.to(twin.device) if _has_any(grown) else None, restoring)


def _has_any(mask: Tensor) -> bool:
    """Whether one entry is True; numpy stops there."""
    return bool(mask.numpy().any()) if mask.device.type == "cpu" else bool(mask.any())


def _checked(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """The parameters of the names, if the masks fit them."""
    parameters: dict[str, nn.Parameter] = {}
    first: dict[int, str] = {}
    for name, mask in masks.items():
        parameter = parameters[name] = find(model, name)
        check_maskable(model, name)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise InvalidInputError(
                f"the mask for {name!r} is not a bool tensor (True = kept).",
                found=mask.dtype if isinstance(mask, Tensor) else type(mask).__name__,
                fix="mask != 0 makes one of numbers",
            )
        if mask.shape != parameter.shape:
            raise ShapeError(
                f"the mask for {name!r} has another shape than the parameter.",
                mask=tuple(mask.shape),
                parameter=tuple(parameter.shape),
            )
        other = first.setdefault(id(parameter), name)
        if other != name and not torch.equal(mask, masks[other]):
            raise InvalidInputError(f"{name!r} and {other!r} are one tied parameter, but their masks differ.")
    refuse_shared(model, {name for name, parameter in model.named_parameters() if id(parameter) in first})
    return parameters


def listed(optimizers: Optimizers) -> list[Optimizer]:
    """One, several or no optimizers, as a list.

    Raises:
        HolderError: Something that is no optimizer.
    """
    if optimizers is None or isinstance(optimizers, Optimizer):
        return [] if optimizers is None else [optimizers]
    items = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
    for item in items:
        if not isinstance(item, Optimizer):
            raise HolderError(
                f"{type(item).__name__} is not an optimizer.", fix="masks.attach(…) takes averages of the model"
            )
    return items


def check_held(model: nn.Module, parameters: Mapping[str, nn.Parameter], optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers that do not hold the trainable ones of the parameters, or that are another model's.

    Raises:
        HolderError: One parameter is in none of them, or one of them holds no parameter of the model at all.
    """
    held: set[int] = set()
    own = {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        its = {id(p) for group in optimizer.param_groups for p in group["params"]}
        held |= its
        if not its & own:
            raise HolderError(
                f"{type(optimizer).__name__} holds no parameter of {type(model).__name__}: it was made for another "
                "model, or all its parameters have been replaced since.",
                fix="secateur.relink_(model, optimizer), or leave the optimizer out",
            )
    lost = [name for name, p in parameters.items() if p.requires_grad and id(p) not in held]
    if lost:
        raise HolderError(
            f"no optimizer that was passed holds {lost[0]!r}, which requires a gradient.",
            not_held=f"{len(lost)} of {len(parameters)}",
            passed=", ".join(type(optimizer).__name__ for optimizer in optimizers),
            fix="pass all optimizers as a list, or requires_grad_(False) what is frozen; "
            "secateur.relink_(model, optimizer) if the parameter was replaced",
        )
