"""What the tests of masks compare with: plain torch, without the package."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NEUTRAL = {"exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "sum"}
"""Second moments, which may hold a neutral value at masked places."""

LEFT_ALONE = {"step_size", "row_var", "col_var"}
"""No moments of single weights: Rprop's step size, which a masked weight never uses, and Adafactor's means over rows
and columns, one of which has the shape of a weight with a single row."""


def half(shape: Iterable[int], seed: int = 0) -> Tensor:
    """A mask that keeps a random half, but nothing of the first row and the last column."""
    mask = torch.rand(tuple(shape), generator=torch.Generator().manual_seed(seed)) > 0.5
    if mask.dim() > 1:
        mask[:1], mask[:, -1:] = False, False
    return mask


def halves(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Such a mask for every parameter of two or more dims."""
    return {name: half(p.shape, seed) for name, p in model.named_parameters() if p.dim() > 1}


def is_zero(tensor: Tensor) -> bool:
    """Whether every entry is 0.0 with the sign bit clear."""
    return bool((tensor == 0).all()) and not bool(
        torch.view_as_real(tensor).signbit().any() if tensor.is_complex() else tensor.signbit().any()
    )


def nonzero_names(model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that are not exactly zero where the masks say so."""
    return [name for name, mask in masks.items() if not is_zero(model.get_parameter(name).detach()[~mask])]


def moments(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The entries of the state that have one value a weight."""
    return {
        name: value
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim()
    }


def carried_over(optimizer: Optimizer, model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Names of moments that hold something at masked places that a later unmasking would release."""
    return [
        f"{name}: {entry}"
        for name, mask in masks.items()
        for entry, value in moments(optimizer, model.get_parameter(name)).items()
        if entry not in NEUTRAL | LEFT_ALONE and bool((value.to_dense()[~mask] != 0).any())
    ]


def zero_by_hand(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set masked weights to zero, as a careful user would."""
    with torch.no_grad():
        for name, mask in masks.items():
            parameter = model.get_parameter(name)
            parameter.copy_(torch.where(mask, parameter, torch.zeros_like(parameter)))


def bits(tensor: Tensor) -> bytes:
    """The memory of a tensor, row by row."""
    return tensor.detach().to_dense().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def snapshot(*things: object) -> Any:
    """All that could be changed by mistake: identities, bits, gradients, flags, hooks, state, masks."""
    return [_model(t) if isinstance(t, nn.Module) else _optimizer(t) for t in things]


def _model(model: nn.Module) -> Any:
    modules = list(model.modules())
    return (
        [(name, id(p), p.requires_grad, *_values(p)) for name, p in model.named_parameters()],
        [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()],
        [[(k, bits(m.bits.packed)) for k, m in vars(module).get("_secateur_masks", {}).items()] for module in modules],
        [len(module._load_state_dict_post_hooks) for module in modules],
        [sorted(vars(module)) for module in modules],
    )


def _values(parameter: nn.Parameter) -> tuple[object, ...]:
    if nn.parameter.is_lazy(parameter) or parameter.is_quantized or parameter.is_inference():
        return ()
    return parameter._version, bits(parameter), None if parameter.grad is None else bits(parameter.grad)


def _optimizer(optimizer: Any) -> Any:
    return [
        [id(p) for p in group["params"]] + [(k, v) for k, v in group.items() if k != "params"]
        for group in optimizer.param_groups
    ], [
        {k: bits(v) if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in state.items()}
        for state in optimizer.state.values()
    ]
