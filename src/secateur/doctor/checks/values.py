"""Values that are not numbers, and layers that are all zeros."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from secateur.doctor.findings import Finding
from secateur.doctor.numbers import is_zero, num_not_finite
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.starts import is_just_begun, starts_at_zero, teams_of
from secateur.doctor.wording import expression, listed


@check("non-finite")
def non_finite(setup: Setup) -> Iterator[Finding]:
    """A parameter, gradient, entry of optimizer state or running statistic with inf or nan in it."""
    kinds = {
        "parameter": {name: [p] for name, p in setup.parameters.items()},
        "gradient": {name: [p.grad] for name, p in setup.parameters.items() if p.grad is not None},
        "optimizer state": dict(_states(setup)),
        "running statistics": dict(_statistics(setup.model)),
    }
    for kind, tensors in kinds.items():
        found = {name: count for name, values in tensors.items() if (count := sum(map(num_not_finite, values)))}
        if found:
            yield _finding(kind, found)


def _finding(kind: str, found: dict[str, int]) -> Finding:
    """The finding for one kind of tensor."""
    names = tuple(found)
    scaled = " With a GradScaler this is usual now and then: it skips the step." if kind == "gradient" else ""
    return Finding(
        "non-finite",
        names,
        f"{sum(found.values())} {kind} values are inf or nan, in {listed(names)}.",
        "Too large a learning rate, log or division of zero, overflow in float16, or inputs that are not finite.",
        f"They spread to everything at the next step.{scaled}" if kind == "gradient" else "They spread to everything.",
        (
            f"{expression(names[0])}.grad = None   # drops this gradient\n"
            if kind == "gradient"
            else "model.load_state_dict(last_good)   # and the optimizer's\n"
        )
        + "torch.autograd.set_detect_anomaly(True)   # finds the op",
        severity="warning" if kind == "gradient" else "error",
        data={"kind": kind, "counts": found},
    )


def _states(setup: Setup) -> Iterator[tuple[str, list[Tensor]]]:
    """Tensors of the optimizers' state by parameter name."""
    for name, parameter in setup.parameters.items():
        slot = setup.held.get(id(parameter))
        state = slot.optimizer.state.get(parameter, {}) if slot else {}
        yield name, [value for value in state.values() if isinstance(value, Tensor)]


def _statistics(model: nn.Module) -> Iterator[tuple[str, list[Tensor]]]:
    """Running means and variances of norm layers (other buffers may hold -inf on purpose, as attention masks do)."""
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in ("running_mean", "running_var"):
            yield name, [buffer]


@check("zero-layer")
def zero_layer(setup: Setup) -> Iterator[Finding]:
    """All weights of a layer are exactly zero, and they stay so."""
    found = {name: why for name, p in setup.parameters.items() if (why := _why_dead(setup, name, p))}
    if found:
        names = tuple(found)
        yield Finding(
            "zero-layer",
            names,
            f"all weights of {listed(names)} are zero.",
            next(iter(found.values())),
            "Nothing passes through the layer, forwards or backwards; layers before it get no gradient through it.",
            "masks = secateur.prune_(model, optimizer, sparsity=…, allocation=secateur.allocation.uniform)",
            severity="warning",
            data={"entries": {name: setup.parameters[name].numel() for name in names}},
        )


def _why_dead(setup: Setup, name: str, parameter: Tensor) -> str:
    """How a weight came to be all zeros for good; empty if it is not, or if it may only start there."""
    if parameter.dim() < 2 or not is_zero(parameter):
        return ""
    mask = setup.masks.get(name)
    if mask is not None and not bool(mask.any()):
        return "Its mask keeps no weight: a global threshold above all of its scores does this."
    if not setup.optimizers:
        return "It was pruned as a whole, as a global threshold above all of its scores does, or starts at zero."
    slot = setup.held.get(id(parameter))
    state = slot.optimizer.state.get(parameter, {}) if slot else {}
    if float(state.get("step", 0)) >= 2:
        return "It was set to zero during training, as a pruning threshold above all of its weights does."
    starting = any(name in team and starts_at_zero(setup, team) for team in teams_of(setup))
    if is_zero(parameter.grad) and not starting and not is_just_begun(setup, parameter):
        return "It is zero and its gradient is zero too, so it stays there."
    return ""
