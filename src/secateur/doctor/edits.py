"""The edits that a repair is made of: functions without arguments, for which all that can fail has been computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from secateur._errors import StaleGraphError
from secateur._names import owner_of
from secateur.doctor.setup import Slot
from secateur.doctor.wording import listed
from secateur.surgery.optimizers import put_state_
from secateur.surgery.storage import set_shape_

__all__ = ["begin_anew", "give_gradient", "give_names", "poison", "put", "reshape", "set_state", "take_out"]

Edit = Callable[[], object]


def put(live: Tensor, name: str, slot: Slot, state: dict[str, Any]) -> Edit:
    """Put a parameter into a slot in place of what is there, with this state."""
    old, optimizer, group, position = slot.tensor, slot.optimizer, slot.options, slot.position

    def edit() -> None:
        group["params"][position] = live
        if "param_names" in group:
            group["param_names"][position] = name
        optimizer.state.pop(old, None)
        put_state_(optimizer, live, state)

    return edit


def take_out(slot: Slot, *, with_state: bool) -> Edit:
    """Take what is in a slot out of the optimizer; later positions of the group move up."""
    optimizer, tensor, group, position = slot.optimizer, slot.tensor, slot.options, slot.position

    def edit() -> None:
        del group["params"][position]
        if "param_names" in group:
            del group["param_names"][position]
        if with_state:
            optimizer.state.pop(tensor, None)

    return edit


def set_state(optimizer: Any, parameter: Tensor, state: dict[str, Any]) -> Edit:
    """Give a parameter its state."""
    return lambda: put_state_(optimizer, parameter, state)


def begin_anew(optimizer: Any) -> Edit:
    """Let LBFGS forget its history: its flat vectors cover all parameters."""

    def edit() -> None:
        optimizer.state.clear()
        optimizer._numel_cache = None

    return edit


def give_gradient(parameter: Tensor, gradient: Tensor | None) -> Edit:
    """Set a gradient of the parameter's shape, or none."""

    def edit() -> None:
        parameter.grad = None  # one of another shape could not be replaced otherwise
        parameter.grad = gradient

    return edit


def give_names(model: nn.Module, names: Sequence[str], parameter: Tensor) -> Edit:
    """Register a parameter under several dotted names, in place of what is there."""

    def edit() -> None:
        for name in names:
            owner, leaf = owner_of(model, name)
            setattr(owner, leaf, parameter)

    return edit


def poison(names: Sequence[str], nodes: Iterable[Any]) -> Edit:
    """Make a backward pass that begins at one of these nodes of old graphs explain itself."""
    explain = partial(_explain, tuple(names))
    return lambda: [node.register_prehook(explain) for node in nodes]


def reshape(name: str, parameter: Tensor, data: Tensor, gradient: Tensor | None) -> Edit:
    """Give a parameter its data and gradient; autograd forgets what it remembers, and old graphs explain themselves."""

    def edit() -> None:
        if parameter.requires_grad:
            get_gradient_edge(parameter).node.register_prehook(partial(_explain, (name,)))
        set_shape_(parameter, data, gradient)

    return edit


def _explain(names: tuple[str, ...], *_: object) -> NoReturn:
    """The hook on nodes of old graphs."""
    raise StaleGraphError(
        f"backward through a graph that was built before {listed(names)} changed shape and was relinked.",
        fix="call the model again and use the new loss; drop the old one: del loss",
    )
