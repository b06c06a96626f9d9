"""What a snapshot keeps of an optimizer: its state by the names of parameters, and the options of its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import HolderError
from secateur.surgery.optimizers import groups_of, put_state_, state_before_first_step
from secateur.tickets.nested import owned

__all__ = ["OptimizerSnapshot", "clearing", "restoring"]


@dataclass(frozen=True, eq=False)
class OptimizerSnapshot:
    """An optimizer at one moment, in memory of its own.

    Args:
        kind: Name of its class.
        state: First dotted name of each parameter that has state -> what the optimizer keeps for it.
        groups: Options of its groups (learning rate, momentum …), in their order.
    """

    kind: str
    state: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer) -> Self:
        """Copy what an optimizer keeps for a model's parameters."""
        state = {
            name: owned(dict(optimizer.state[parameter]))
            for name, parameter in model.named_parameters()
            if optimizer.state.get(parameter)
        }
        options = [owned({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
        return cls(type(optimizer).__name__, state, options)

    def check_kind(self, optimizer: Optimizer) -> None:
        """Refuse another optimizer than the one that was kept.

        Raises:
            HolderError: It is of another class, or has another number of groups.
        """
        if type(optimizer).__name__ != self.kind or len(optimizer.param_groups) != len(self.groups):
            raise HolderError(
                "the snapshot holds another optimizer's state.",
                snapshot=f"{self.kind} with {len(self.groups)} groups",
                optimizer=f"{type(optimizer).__name__} with {len(optimizer.param_groups)} groups",
                fix="pass optimizers of the same classes, in the order in which the snapshot was taken",
            )

    def restore_options_(self, optimizer: Optimizer) -> None:
        """Give the groups the options that they had; a learning rate that is a tensor stays the same object."""
        for group, kept in zip(optimizer.param_groups, self.groups, strict=True):
            for key, value in kept.items():
                present = group.get(key)
                if isinstance(present, Tensor):
                    present.fill_(value)
                else:
                    group[key] = owned(value)


def clearing(model: nn.Module, names: Sequence[str], optimizer: Optimizer) -> Iterator[Callable[[], object]]:
    """Yield what gives parameters the state of before the first step.

    Args:
        model: The model.
        names: First names of the parameters.
        optimizer: The optimizer; LBFGS, whose history is one for all parameters, forgets it.
    """
    groups = groups_of(optimizer)
    for parameter in _keepers(model, names, optimizer):
        state = optimizer.state.get(parameter)
        if state:
            fresh = state_before_first_step(optimizer, parameter, state, groups[id(parameter)])
            yield partial(put_state_, optimizer, parameter, fresh)


def restoring(
    model: nn.Module, names: Sequence[str], optimizer: Optimizer, kept: OptimizerSnapshot
) -> Iterator[Callable[[], object]]:
    """Yield what gives parameters the state that a snapshot holds for them.

    Args:
        model: The model.
        names: First names of the parameters.
        optimizer: The optimizer.
        kept: What the snapshot holds of it.

    Raises:
        HolderError: The snapshot holds the state of none of the optimizer's parameters, but that of others.
    """
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = groups_of(optimizer)
    if kept.state and not any(name_of.get(number) in kept.state for number in groups):
        raise HolderError(
            "the snapshot holds the state of another optimizer's parameters.",
            snapshot=", ".join(list(kept.state)[:8]),
            optimizer=", ".join([name for number, name in name_of.items() if number in groups][:8]),
            fix="pass optimizers in the order in which the snapshot was taken",
        )
    for parameter in _keepers(model, names, optimizer):
        group, present = groups[id(parameter)], optimizer.state.get(parameter)
        state = _placed(kept.state.get(name_of.get(id(parameter), ""), {}), parameter, group)
        if present and not state:
            state = state_before_first_step(optimizer, parameter, present, group)
        yield partial(put_state_, optimizer, parameter, state)


def _keepers(model: nn.Module, names: Sequence[str], optimizer: Optimizer) -> list[Tensor]:
    """The parameters under which an optimizer keeps the state of the named ones."""
    held = groups_of(optimizer)
    meant: list[Tensor] = [p for name, p in model.named_parameters() if name in set(names) and id(p) in held]
    return optimizer.param_groups[0]["params"][:1] if isinstance(optimizer, torch.optim.LBFGS) and meant else meant


def _placed(state: Mapping[str, Any], parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a state on the devices where the optimizer looks for it: single numbers only if it is fused."""
    on_device = group.get("fused") or group.get("capturable")
    return {
        key: value.to(parameter.device) if isinstance(value, Tensor) and (value.dim() or on_device) else value
        for key, value in owned(dict(state)).items()
    }
