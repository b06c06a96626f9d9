"""Gradients that do not arrive, or arrive as zeros."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from secateur.doctor.findings import Finding
from secateur.doctor.graph import reached
from secateur.doctor.numbers import is_zero
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup, Slot
from secateur.doctor.starts import is_just_begun, starts_at_zero, teams_of
from secateur.doctor.state import is_idle
from secateur.doctor.wording import expression, listed


@check("loss-without-graph")
def loss_without_graph(setup: Setup) -> Iterator[Finding]:
    """The loss has no graph, so no gradient can come from it."""
    if setup.loss is not None and setup.loss.grad_fn is None and not setup.loss.requires_grad:
        frozen = bool(setup.parameters) and not setup.trainable
        yield Finding(
            "loss-without-graph",
            (),
            "the loss is attached to no graph.",
            "All parameters are frozen (requires_grad=False)."
            if frozen
            else "It was computed under torch.no_grad(), or from .detach(), .data, .item() or .numpy().",
            "loss.backward() raises 'element 0 of tensors does not require grad'.",
            "model.requires_grad_(True)"
            if frozen
            else "loss = criterion(model(inputs), targets)   # outside no_grad()",
        )


@check("no-gradient")
def no_gradient(setup: Setup) -> Iterator[Finding]:
    """A parameter requires a gradient, and the backward pass gives it none."""
    leaves = reached(setup.loss) if setup.loss is not None and setup.loss.grad_fn is not None else None
    teams = teams_of(setup)
    missed = []
    for team in teams:
        if (len(teams) == 1 and leaves is not None) or any(_has_turn(p, leaves) for p in team.values()):
            missed += [name for name, p in team.items() if p.grad is None and _is_missed(setup, p, leaves)]
    if not missed:
        return
    source = "the loss" if leaves is not None else "the last backward pass"
    share = f"{len(missed)} of {len(setup.trainable)} trainable parameters"
    yield Finding(
        "no-gradient",
        tuple(missed),
        f"{source} does not reach {share}: {listed(tuple(missed))}.",
        "Their layers are not called in forward(), or their outputs pass through .detach(), .data, .item(), "
        "torch.no_grad(), argmax or another step without a derivative, or are not part of the loss.",
        "Their .grad stays None, and the optimizer leaves them as they are.",
        f"{expression(missed[0])}.requires_grad_(False)   # or use it in forward(), without those steps",
        severity="error" if len(missed) == len(setup.trainable) else "warning",
        data={"missed": len(missed), "trainable": len(setup.trainable)},
    )


def _has_turn(parameter: Tensor, leaves: set[int] | None) -> bool:
    """Whether a parameter gets a gradient, which shows that it is its team's turn."""
    return parameter.grad is not None if leaves is None else id(parameter) in leaves


def _is_missed(setup: Setup, parameter: Tensor, leaves: set[int] | None) -> bool:
    """Whether a parameter without gradient is out of reach, rather than new since the last backward pass."""
    if leaves is not None:
        return id(parameter) not in leaves
    slot = setup.held.get(id(parameter))
    trained = slot is not None and bool(slot.optimizer.state.get(parameter))
    return not trained and parameter._version > 0


@check("zero-gradient")
def zero_gradient(setup: Setup) -> Iterator[Finding]:
    """The gradient of a whole parameter is exactly zero."""
    dead: list[str] = []
    emptied = {name for name, mask in setup.masks.items() if not bool(mask.any())}
    for team in teams_of(setup):
        zero = {name: is_zero(p.grad) for name, p in team.items() if p.grad is not None}
        if not all(zero.values()) and not _is_by_chance(setup) and not starts_at_zero(setup, team):
            dead += [name for name, none in zero.items() if none and not is_just_begun(setup, team[name])]
        slots = {name: setup.held.get(id(p)) for name, p in team.items()}
        dead += [name for name, slot in slots.items() if name not in dead and slot and is_idle(slot) and _quiet(slot)]
    names = tuple(name for name in setup.trainable if name in dead and name not in emptied)
    if names:
        yield Finding(
            "zero-gradient",
            names,
            f"the gradient is exactly zero everywhere in {listed(names)}.",
            "Units behind them are dead (a ReLU that is negative for all inputs), saturated or multiplied by zero, or "
            "a later layer is all zeros.",
            "Only weight decay and old momentum move them.",
            f"nn.init.kaiming_uniform_({expression(names[0])})   # anew, in place; and a lower lr, or GELU",
            severity="warning",
            data={"dead": len(names), "trainable": len(setup.trainable)},
        )


def _is_by_chance(setup: Setup) -> bool:
    """Whether whole blocks are left out at random, so that a gradient of zero says nothing."""
    kinds = {type(module).__name__ for module in setup.model.modules() if module.training}
    return not kinds.isdisjoint({"StochasticDepth", "DropPath"})


def _quiet(slot: Slot) -> bool:
    """Whether the tensor has no gradient now that would say otherwise."""
    return slot.tensor.grad is None or is_zero(slot.tensor.grad)
