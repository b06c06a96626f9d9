"""What a check looks at: the model, the optimizers and the rest of a training setup."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from secateur._errors import InvalidInputError
from secateur.masks.registry import mask_of

__all__ = ["MasksByName", "Setup", "Slot"]


Result = TypeVar("Result")


@runtime_checkable
class MasksByName(Protocol):
    """Anything that yields masks by dotted name, such as `Masks` or a dict; bool, True = kept."""

    def items(self) -> Iterable[tuple[str, Tensor]]:
        """Pairs of dotted parameter name and mask."""


@dataclass(frozen=True, eq=False)
class Slot:
    """One place in an optimizer: ``optimizer.param_groups[group]["params"][position]``."""

    optimizer: Optimizer
    group: int
    position: int

    @property
    def options(self) -> dict[str, Any]:
        """The group: its options, ``"params"`` and, if known, ``"param_names"``."""
        return self.optimizer.param_groups[self.group]

    @property
    def tensor(self) -> Tensor:
        """What the optimizer holds there (not kept here, so that looking at a tensor does not keep it alive)."""
        found: Tensor = self.options["params"][self.position]
        return found

    @property
    def name(self) -> str | None:
        """The name that the optimizer was given for it, None if it was made without names."""
        names = self.options.get("param_names")
        return names[self.position] if names else None


class Setup:
    """A training setup, as `diagnose` was given it. Checks read it and change nothing.

    Args:
        model: The model; wrappers that keep its parameters (``torch.compile``, DDP, DataParallel) are looked through.
        optimizer: An optimizer, several of them, or None.
        loss: The loss of a forward pass, or None.
        masks: Masks by dotted name; those that `prune_` put on the model if None.
        ema: An ``AveragedModel``, a copy of the model, a dict of tensors, several of them, or None.
        scheduler: A learning-rate scheduler, several of them, or None.
        former: Names under which tensors, by id, are known to have been in the model before.

    Raises:
        InvalidInputError: One of them is not what it should be.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: object = None,
        loss: Tensor | None = None,
        *,
        masks: MasksByName | None = None,
        ema: object = None,
        scheduler: object = None,
        former: Mapping[int, str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidInputError("`model` is not an nn.Module.", model=type(model).__name__)
        if loss is not None and not isinstance(loss, Tensor):
            fix = "pass the tensor that backward() is called on, not loss.item()"
            raise InvalidInputError("`loss` is not a tensor.", loss=type(loss).__name__, fix=fix)
        if masks is not None and not isinstance(masks, MasksByName):
            fix = "masks={'fc1.weight': mask}, or what prune_ returned"
            raise InvalidInputError("`masks` has no items().", masks=type(masks).__name__, fix=fix)
        self.given = model
        self.model = _plain(model)
        self.optimizers: tuple[Any, ...] = _several(optimizer)
        self.loss = loss
        self._masks = masks
        self.averages = _several(ema)
        self.schedulers: tuple[Any, ...] = _several(scheduler)
        for entry in self.optimizers:
            if not hasattr(entry, "param_groups") or not hasattr(entry, "state"):
                fix = "diagnose(model, optimizer, loss)"
                raise InvalidInputError("`optimizer` is not an optimizer.", optimizer=type(entry).__name__, fix=fix)
        self.former = dict(former or {})
        self._results: dict[Callable[[Setup], object], object] = {}

    def once(self, ask: Callable[[Setup], Result]) -> Result:
        """What `ask` says of this setup; computed when it is first asked, however many checks ask."""
        if ask not in self._results:
            self._results[ask] = ask(self)
        return cast(Result, self._results[ask])

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        """Masks by dotted name, bool, True = kept."""
        if self._masks is not None:
            given = dict(self._masks.items())
            if not all(isinstance(name, str) and isinstance(mask, Tensor) for name, mask in given.items()):
                kinds = ", ".join(f"{name!r}: {type(mask).__name__}" for name, mask in list(given.items())[:4])
                fix = "masks={'fc1.weight': mask}, bool tensors by dotted name"
                raise InvalidInputError("`masks` holds something else than tensors by name.", masks=kinds, fix=fix)
            return given
        found = {name: mask_of(p) for name, p in self.parameters.items()}
        return {name: mask.bits.dense for name, mask in found.items() if mask is not None}

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Parameters by first dotted name, in the model's order, without lazy ones that have no shape yet."""
        named = self.model.named_parameters()
        return {name: p for name, p in named if not isinstance(p, UninitializedParameter | UninitializedBuffer)}

    @cached_property
    def trainable(self) -> dict[str, Tensor]:
        """Those parameters that require a gradient."""
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every place of every optimizer, in order."""
        return tuple(
            Slot(optimizer, group, position)
            for optimizer in self.optimizers
            for group, options in enumerate(optimizer.param_groups)
            for position in range(len(options["params"]))
        )

    @cached_property
    def _places(self) -> dict[int, dict[int, Slot]]:
        """The first slot in each optimizer of everything that is held: tensor's id -> optimizer's id -> slot."""
        places: dict[int, dict[int, Slot]] = {}
        for slot in self.slots:
            places.setdefault(id(slot.tensor), {}).setdefault(id(slot.optimizer), slot)
        return places

    @cached_property
    def held(self) -> dict[int, Slot]:
        """The first slot of everything that an optimizer holds, by the tensor's id."""
        return {key: next(iter(slots.values())) for key, slots in self._places.items()}

    def places(self, tensor: Tensor) -> list[Slot]:
        """Where a tensor is held: its first slot in each optimizer that holds it."""
        return list(self._places.get(id(tensor), {}).values())

    @cached_property
    def unheld(self) -> dict[str, Tensor]:
        """Trainable parameters that none of the optimizers holds, by first name; empty if there is no optimizer."""
        if not self.optimizers:
            return {}
        return {name: p for name, p in self.trainable.items() if id(p) not in self.held}

    @cached_property
    def orphans(self) -> tuple[Slot, ...]:
        """First slots of what the optimizers hold and the model does not have."""
        own = {id(p) for p in self.model.parameters()}
        return tuple(slot for key, slot in self.held.items() if key not in own)

    @cached_property
    def abandoned(self) -> frozenset[int]:
        """Ids of orphans that are known to have been in the model, or to which nothing but these optimizers refers."""
        if self.orphans and self.unheld:
            gc.collect()  # what is only waiting to be freed refers to nothing
        places = Counter(id(slot.tensor) for slot in self.slots)
        found = {id(slot.tensor) for slot in self.orphans} & self.former.keys()
        for slot in self.orphans:
            keyed = sum(slot.tensor in optimizer.state for optimizer in self.optimizers)
            if _references(slot.options["params"], slot.position) <= places[id(slot.tensor)] + keyed:
                found.add(id(slot.tensor))
        return frozenset(found)


def _plain(model: nn.Module) -> nn.Module:
    """The model inside wrappers that keep its parameters as they are."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        inner = model.module
    return _plain(inner) if isinstance(inner, nn.Module) else model


def _several(given: object) -> tuple[Any, ...]:
    """One, several or none, as a tuple."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, Mapping) else (given,)


def _references(items: list[Any], position: int) -> int:
    """How many references there are to an item of a list, that of the list included."""
    lone = [object()]
    return sys.getrefcount(items[position]) - sys.getrefcount(lone[0]) + 1
