"""What is usual at the start of training, or in models that are trained by turns, and so is nothing to report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from secateur.doctor.numbers import is_zero
from secateur.doctor.setup import Setup

__all__ = ["is_first_step", "starts_at_zero", "teams_of"]


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


def is_first_step(setup: Setup, parameter: Tensor) -> bool:
    """Whether the optimizer counts steps, and has made one only: the gradient is the first one."""
    slot = setup.held.get(id(parameter))
    return slot is not None and 0 < float(slot.optimizer.state.get(parameter, {}).get("step", 0)) < 2


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
        if is_zero(parameter) or (slot is not None and _left_zero(parameter, gradient, slot.options)):
            return True
    return False


def _left_zero(parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether the value is what one plain step from zero gives."""
    if gradient.shape != parameter.shape or group.get("lr") is None:
        return False
    lr, momentum = float(group["lr"]), group.get("momentum", 0) or 0
    sign = 1.0 if group.get("maximize") else -1.0
    steps = (sign * lr, sign * lr * (1 + momentum))
    return any(torch.allclose(parameter.detach(), step * gradient, rtol=1e-3, atol=0.0) for step in steps)
