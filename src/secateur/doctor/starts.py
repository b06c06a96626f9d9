"""What is usual at the start of training, or in models that are trained by turns, and so is nothing to report."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from secateur.doctor.numbers import is_zero
from secateur.doctor.setup import Setup, Slot
from secateur.doctor.state import FEW_STEPS

__all__ = ["is_just_begun", "starts_at_zero", "teams_of"]


def teams_of(setup: Setup) -> list[dict[str, Tensor]]:
    """Trainable parameters by optimizer: parts that are trained by turns get gradients by turns.

    Args:
        setup: The training setup.

    Returns:
        One dict of parameters by name an optimizer; one of all parameters if there is no optimizer.
    """
    if not setup.optimizers:
        return [setup.trainable]
    teams: dict[int, dict[str, Tensor]] = {}
    for name, parameter in setup.trainable.items():
        slot = setup.held.get(id(parameter))
        if slot is not None:
            teams.setdefault(id(slot.optimizer), {})[name] = parameter
    return list(teams.values())


def is_just_begun(setup: Setup, parameter: Tensor) -> bool:
    """Whether the optimizer counts steps, and has made some, but too few to tell (see `FEW_STEPS`)."""
    slot = setup.held.get(id(parameter))
    return slot is not None and 0 < float(slot.optimizer.state.get(parameter, {}).get("step", 0)) < FEW_STEPS


def starts_at_zero(setup: Setup, team: Mapping[str, Tensor]) -> bool:
    """Whether a weight that is, or just was, all zeros explains zero gradients before it.

    The first gradients behind such a weight are zero in LoRA, in residual branches that start at zero, and behind heads
    that start at zero.
    """
    for name, parameter in team.items():
        gradient = parameter.grad
        if name.endswith("bias") or gradient is None or is_zero(gradient) or gradient.layout != torch.strided:
            continue
        slot = setup.held.get(id(parameter))
        if is_zero(parameter) or (slot is not None and _left_zero(parameter, gradient, slot)):
            return True
    return False


def _left_zero(parameter: Tensor, gradient: Tensor, slot: Slot) -> bool:
    """Whether the value is what one step from zero gives: along the gradient or the momentum, or along their signs."""
    group, value = slot.options, parameter.detach()
    if gradient.shape != value.shape or group.get("lr") is None or value.is_meta or not value.numel():
        return False
    gradient, momentum = gradient.to(value.dtype), float(group.get("momentum", 0) or 0)
    rate = 1.001 * max(abs(float(group[key])) for key in ("lr", "initial_lr") if key in group)
    sizes = value.abs()
    if value.numel() == 1:
        return float(sizes) <= rate * max(1.0, (1 + momentum) * float(gradient.abs()))
    if rate >= float(sizes.max()) <= 1.002 * float(sizes.min()):
        return True
    buffer = slot.optimizer.state.get(parameter, {}).get("momentum_buffer")
    buffers = [] if buffer is None or buffer.shape != value.shape else [buffer, gradient + momentum * buffer]
    return any(_is_parallel(value, step) for step in (gradient, *buffers))


def _is_parallel(one: Tensor, other: Tensor) -> bool:
    """Whether one is a multiple of the other, but for rounding."""
    one, other = (t.flatten().to(torch.promote_types(t.dtype, torch.float32)) for t in (one, other))
    return bool(torch.vdot(one, other.to(one.dtype)).abs() >= (1 - 1e-5) * one.norm() * other.norm() > 0)
