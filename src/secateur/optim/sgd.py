"""Stochastic gradient descent over kept weights, as ``torch.optim.SGD`` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from secateur._native import stepping
from secateur._native.stepping import Batch, Job
from secateur.optim.checking import check_options
from secateur.optim.members import Masked, Whole, can_fuse
from secateur.optim.optimizer import SparseOptimizer

__all__ = ["SparseSGD"]


class SparseSGD(SparseOptimizer):
    r"""``torch.optim.SGD``, with kept weights stepped and remembered only.

    For a parameter that `secateur.prune_` has masked, momentum of kept weights alone is held and updated, and masked
    weights are set to exactly 0 in the same pass, whatever their gradients hold. All other parameters are stepped as by
    ``torch.optim.SGD(fused=True)``, and so are kept weights:

    .. math:: g \leftarrow g + \lambda w, \quad b \leftarrow \mu b + (1 - \tau) g, \quad w \leftarrow w - \gamma b

    At a parameter's first step b is g; with Nesterov's momentum, g + μb takes the place of b in the last equation.

    Masks may change at any time (`secateur.dst`, ``masks.update_``, another ``prune_``): regrown weights start with
    momentum 0. Native kernels step float32 on the CPU, torch all others, equally but for rounding.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate γ; a number, or a tensor with one.
        momentum: μ.
        dampening: τ.
        weight_decay: λ.
        nesterov: See above.
        maximize: Step along the gradient, not against it.
        mask_gradients: Set gradients of masked weights to zero as they arrive, for whoever else looks at them. False
            makes training faster; gradients are then as backward passes leave them, unless `mask_gradients_` is called.
        foreach: Not supported, and here to be refused clearly; so are the other two.
        differentiable: Not supported.
        fused: Not supported: what torch can do fused, is.

    Raises:
        ValueError: A number that torch's optimizer refuses.
        InvalidInputError: `mask_gradients` is no bool.
        UnsupportedError: An option or a complex parameter.

    Example:
        >>> import secateur
        >>> model = nn.Linear(100, 100)
        >>> optimizer = SparseSGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> masks = secateur.prune_(model, optimizer, sparsity=0.9)
        >>> model(torch.randn(4, 100)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model.weight]["momentum_buffer"].shape
        torch.Size([1000])
    """

    _per_weight = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        mask_gradients: bool = True,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        asked = {"foreach": foreach, "fused": fused, "differentiable": differentiable}
        check_options(type(self).__name__, asked)
        alike = torch.optim.SGD(
            [nn.Parameter(torch.empty(0))], lr, momentum, dampening, weight_decay, nesterov, maximize=maximize
        )
        super().__init__(params, alike.defaults, mask_gradients=mask_gradients)

    def _step_batch(self, group: dict[str, Any], batch: Batch) -> None:
        stepping.step_sgd(batch, lr=float(group["lr"]), **_options(group))

    def entries(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """See `SparseOptimizer.entries`."""
        return self._per_weight if group["momentum"] else ()

    def _step_with_torch(self, group: dict[str, Any], members: Sequence[Whole | Masked]) -> None:
        """First steps have a call of their own."""
        for together in [[e for e in members if self._begins(e, group) is begins] for begins in (True, False)]:
            if together:
                self._step_together(group, together)

    def _begins(self, each: Whole | Masked, group: dict[str, Any]) -> bool:
        """Whether momentum begins with the gradient that there is."""
        return bool(group["momentum"]) and self._momentum(each) is None

    def _momentum(self, each: Whole | Masked) -> Tensor | None:
        """The momentum of a parameter, None before its first step."""
        found: Tensor | None = self.state.get(each.parameter, {}).get("momentum_buffer")
        return found

    def _job(self, each: Whole | Masked, group: dict[str, Any]) -> Job:
        begins = self._begins(each, group)
        if begins:
            self.state[each.parameter].update(each.begin({"momentum_buffer": each.empty()}))
        momentum = self._momentum(each) if group["momentum"] else None
        states = () if momentum is None else (momentum,)
        return each.job(states, begins=begins)

    def _step_together(self, group: dict[str, Any], members: Sequence[Whole | Masked]) -> None:
        """Step parameters that all have momentum, or all have none."""
        weights = [each.take(each.parameter) for each in members]
        gradients = [each.take(each.gradient) for each in members]
        momenta = [self._momentum(each) if group["momentum"] else None for each in members]
        sgd(
            weights,
            gradients,
            momenta,
            lr=group["lr"],
            fused=can_fuse(weights, gradients, momenta) or None,
            **_options(group),
        )
        for each, weight, momentum in zip(members, weights, momenta, strict=True):
            if momentum is not None and self._begins(each, group):
                self.state[each.parameter].update(each.begin({"momentum_buffer": momentum}))
            each.put_(weight)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Options that kernels and torch take alike."""
    return {name: group[name] for name in ("momentum", "dampening", "weight_decay", "nesterov", "maximize")}
