"""AdamW over kept weights.

References:
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2; as ``torch.optim.AdamW`` has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from secateur._native import stepping
from secateur._native.stepping import Batch, Job
from secateur.optim.checking import check_options
from secateur.optim.members import Masked, Whole, can_fuse
from secateur.optim.optimizer import SparseOptimizer

__all__ = ["SparseAdamW"]


class SparseAdamW(SparseOptimizer):
    r"""``torch.optim.AdamW``, with kept weights stepped and remembered only.

    For a parameter that `secateur.prune_` has masked, moments of kept weights alone are held and updated, and masked
    weights are set to exactly 0 in the same pass, whatever their gradients hold. All other parameters are stepped as by
    ``torch.optim.AdamW(fused=True)``, and so are kept weights:

    .. math:: w \leftarrow (1 - \gamma \lambda) w, \quad m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        w \leftarrow w - \gamma \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Masks may change at any time (`secateur.dst`, ``masks.update_``, another ``prune_``): regrown weights start with
    moments of 0. Native kernels step float32 on the CPU, torch all others, equally but for rounding.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate γ; a number, or a tensor with one.
        betas: Decay β₁, β₂ of the two moments.
        eps: ε.
        weight_decay: λ.
        amsgrad: Divide by the largest second moment so far.
        maximize: Step along the gradient, not against it.
        mask_gradients: Set gradients of masked weights to zero as they arrive, for whoever else looks at them. False
            makes training faster; gradients are then as backward passes leave them, unless `mask_gradients_` is called.
        foreach: Not supported, and here to be refused clearly; so are the other three.
        capturable: Not supported.
        differentiable: Not supported.
        fused: Not supported: what torch can do fused, is.

    Raises:
        ValueError: A number that torch's optimizer refuses.
        InvalidInputError: `mask_gradients` is no bool.
        UnsupportedError: An option or a complex parameter.

    Example:
        >>> import secateur
        >>> model = nn.Linear(100, 100)
        >>> optimizer = SparseAdamW(model.parameters(), lr=1e-3)
        >>> masks = secateur.prune_(model, optimizer, sparsity=0.9)
        >>> model(torch.randn(4, 100)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model.weight]["exp_avg"].shape
        torch.Size([1000])
        >>> optimizer.state_dict()["state"][0]["exp_avg"].shape  # as in torch.optim.AdamW
        torch.Size([100, 100])
    """

    _per_weight = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        mask_gradients: bool = True,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        asked = {"foreach": foreach, "fused": fused, "capturable": capturable, "differentiable": differentiable}
        check_options(type(self).__name__, asked)
        alike = torch.optim.AdamW(
            [nn.Parameter(torch.empty(0))], lr, betas, eps, weight_decay, amsgrad, maximize=maximize
        )
        super().__init__(params, alike.defaults, mask_gradients=mask_gradients)

    def _job(self, each: Whole | Masked, group: dict[str, Any]) -> Job:
        state = self._begun(each, group)
        return each.job(tuple([state[name] for name in self.entries(group)]), state["step"])

    def _step_batch(self, group: dict[str, Any], batch: Batch) -> None:
        stepping.step_adamw(batch, lr=float(group["lr"]), betas=group["betas"], **_options(group))

    def _step_with_torch(self, group: dict[str, Any], members: Sequence[Whole | Masked]) -> None:
        states = [self._begun(each, group) for each in members]
        weights = [each.take(each.parameter) for each in members]
        gradients = [each.take(each.gradient) for each in members]
        moments = [[state[name] for state in states] for name in self.entries(group)]
        adamw(
            weights,
            gradients,
            moments[0],
            moments[1],
            moments[2] if group["amsgrad"] else [],
            [state["step"] for state in states],
            amsgrad=group["amsgrad"],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            fused=can_fuse(weights, gradients, *moments) or None,
            **_options(group),
        )
        for each, weight in zip(members, weights, strict=True):
            each.put_(weight)

    def _begun(self, each: Whole | Masked, group: dict[str, Any]) -> dict[str, Any]:
        """A parameter's state, which is made at its first step."""
        state: dict[str, Any] = self.state[each.parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state.update(each.begin({name: each.empty().zero_() for name in self.entries(group)}))
        return state

    def entries(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """See `SparseOptimizer.entries`."""
        return self._per_weight if group["amsgrad"] else self._per_weight[:2]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Options that kernels and torch take alike."""
    return {name: group[name] for name in ("eps", "weight_decay", "maximize")}
