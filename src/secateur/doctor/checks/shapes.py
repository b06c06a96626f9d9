"""Gradients, optimizer state and averages of another shape than the parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.state import flat_misfit, misfits
from secateur.doctor.wording import expression, listed, shape_of


@check("grad-shape", structural=True)
def grad_shape(setup: Setup) -> Iterator[Finding]:
    """A gradient of another shape than its parameter."""
    found = {n: p for n, p in setup.parameters.items() if p.grad is not None and p.grad.shape != p.shape}
    if not found:
        return
    name, parameter = next(iter(found.items()))
    gradient = parameter.grad if parameter.grad is not None else parameter
    yield Finding(
        "grad-shape",
        tuple(found),
        f"the gradient of {listed(tuple(found))} has another shape: grad shape {tuple(gradient.shape)} differs from "
        f"parameter {tuple(parameter.shape)} for {name!r}.",
        f"`{expression(name)}.data` was cut by hand after a backward pass, and `.grad` was left; or a backward "
        "pass went through a graph from before the cut.",
        "optimizer.step() raises, and the next backward() cannot add to it.",
        f"secateur.relink_(model, optimizer)\n{expression(name)}.grad = None   # loses what was accumulated",
        repairable=True,
        data={"tensors": {n: {"shape": shape_of(p), "grad_shape": shape_of(_grad(p))} for n, p in found.items()}},
    )


def _grad(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that is known to have one."""
    return parameter.grad if parameter.grad is not None else parameter


@check("state-shape", structural=True)
def state_shape(setup: Setup) -> Iterator[Finding]:
    """Optimizer state of another shape than its parameter."""
    known = {id(p): name for name, p in setup.parameters.items()}
    found: dict[str, dict[str, Any]] = {}
    for name in setup.parameters:
        slots = setup.places(setup.parameters[name])
        wrong = {entry: shape_of(value) for slot in slots for entry, value in misfits(slot)}
        if wrong:
            found[name] = {"shape": shape_of(setup.parameters[name]), "state": wrong}
    for optimizer in setup.optimizers:
        flat = flat_misfit(optimizer)
        if flat:
            first = next((known[id(p)] for p in optimizer.param_groups[0]["params"] if id(p) in known), "?")
            found[first] = {"entries": flat[1], "state": {"flat vectors over all parameters": [flat[0]]}}
    if not found:
        return
    first, facts = next(iter(found.items()))
    entry, shape = next(iter(facts["state"].items()))
    yield Finding(
        "state-shape",
        tuple(found),
        f"the optimizer's state of {listed(tuple(found))} has another shape: {entry!r} is {tuple(shape)} "
        f"for {first!r}, which is {tuple(facts.get('shape', [facts.get('entries')]))}.",
        "The parameter was cut by hand after a step, or optimizer.load_state_dict() loaded the state of another model; "
        "that does not compare shapes.",
        "optimizer.step() raises, or moves the wrong entries.",
        "secateur.relink_(model, optimizer)",
        repairable=True,
        data={"tensors": found},
    )


@check("ema-shape", structural=True)
def ema_shape(setup: Setup) -> Iterator[Finding]:
    """An averaged model, or another copy, of other shapes than the model."""
    found: dict[str, dict[str, Any]] = {}
    for average in setup.averages:
        for name, copy in _copies(setup, average).items():
            own = setup.parameters.get(name)
            if own is not None and isinstance(copy, Tensor) and copy.shape != own.shape:
                found[name] = {"shape": shape_of(own), "ema_shape": shape_of(copy)}
    if not found:
        return
    first, facts = next(iter(found.items()))
    yield Finding(
        "ema-shape",
        tuple(found),
        f"the average of {listed(tuple(found))} has another shape: {tuple(facts['ema_shape'])} for {first!r}, which is "
        f"{tuple(facts['shape'])}.",
        "The model was cut and its averaged copy was not.",
        "update_parameters() raises, or the average is one of another model.",
        "ema = torch.optim.swa_utils.AveragedModel(model)   # starts anew\n"
        f"secateur.resize_(model, {first!r}, dim=…, keep=keep, optimizer=optimizer, ema=ema)   # cuts both",
        data={"tensors": found},
    )


def _copies(setup: Setup, average: object) -> Mapping[str, object]:
    """The tensors of a copy by name; a module may hold the copy as one of its own (``AveragedModel`` and the like)."""
    if isinstance(average, nn.Module):
        inside = (dict(module.named_parameters()) for module in average.modules())
        return next((named for named in inside if not setup.parameters.keys().isdisjoint(named)), {})
    return average if isinstance(average, Mapping) else {}
