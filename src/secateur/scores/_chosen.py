"""The weights that a score with data is asked for, checked before the model runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError
from secateur._names import Selectors, chosen_names, computed_by
from secateur._wrappers import refuse_model, unwrapped

__all__ = ["chosen", "precise", "product"]


def chosen(model: nn.Module, include: Selectors, *, trained: bool = True) -> dict[str, nn.Parameter]:
    """The parameters to score, by first dotted names in the model's order.

    Args:
        model: The model, or what `torch.compile` has made of it.
        include: Globs over dotted names or module types; if left out, all weights (no biases, no norms), without
            those that are parts of computed ones if there are others.
        trained: Whether the score needs gradients. Frozen weights are then left out, and refused where they are named.

    Raises:
        InvalidInputError: A selector that means nothing, a frozen weight, nothing to score, inference mode, or a call
            inside ``parametrize.cached()``.
        UnsupportedError: A model inside a wrapper, or a lazy parameter.
    """
    refuse_model(model)
    _refuse_call(model)
    inner = unwrapped(model)
    parameters = dict(inner.named_parameters())
    names = chosen_names(inner, include)
    if include is None:
        names = [name for name in names if not computed_by(inner, name)] or names
    for name in names:
        if nn.parameter.is_lazy(parameters[name]):
            raise UnsupportedError(
                f"cannot score {name!r}: it is lazy, it has no shape yet.", fix="run one forward pass first"
            )
    frozen = [name for name in names if trained and not parameters[name].requires_grad]
    if frozen and include is not None:
        raise InvalidInputError(
            f"cannot score {frozen[0]!r} by gradients: it is frozen, so the loss has none there.",
            frozen=len(frozen),
            fix="parameter.requires_grad_(True) first, or leave it out of include=…",
        )
    names = [name for name in names if name not in frozen]
    if not names:
        raise InvalidInputError(
            f"nothing in {type(inner).__name__} is left to score.",
            parameters=len(parameters),
            frozen=len(frozen),
            fix="parameter.requires_grad_(True) first, or a score that needs no gradients"
            if frozen
            else "biases and norms are left out by default; include=['*'] takes all parameters",
        )
    return {name: parameters[name] for name in names}


def _refuse_call(model: nn.Module) -> None:
    """Refuse to work where autograd records nothing, or where the graph of computed weights is the caller's."""
    if _compat.is_caching_parametrizations():
        raise InvalidInputError(
            "cannot score inside parametrize.cached(), whose graph lasts for one backward pass.",
            fix="call it outside the with block",
        )
    made = [name for name, p in model.named_parameters() if not nn.parameter.is_lazy(p) and p.is_inference()]
    if torch.is_inference_mode_enabled() or made:
        raise InvalidInputError(
            "cannot score in inference mode, where autograd records nothing.",
            made_in_inference_mode=made[:8] or "no parameter",
            fix="make the model and call the score outside torch.inference_mode(); torch.no_grad() is no hindrance",
        )


def precise(tensor: Tensor, at_least: torch.dtype = torch.float32) -> Tensor:
    """A tensor's values in single precision or better: in half precision products vanish and sums overflow."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, at_least))


def product(weight: Tensor, gradient: Tensor) -> Tensor:
    r"""What the loss changes by, to first order, if the weight doubles: ``w g``; ``Re(w̄ g)`` for complex weights."""
    return (weight.conj() * gradient).real
