"""A copy of a model for inference: plain weights with their zeros, and no units that are empty."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune

from secateur._errors import InvalidInputError, SecateurError, ShapeError, UnsupportedError
from secateur._passes import Inputs
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks
from secateur.shrink.dead import plan_masked
from secateur.shrink.values import refuse_valueless

__all__ = ["bare_", "plain_copy", "without_empty_units"]


_LEAST_GAIN = 0.02  # of the parameters
_HALVINGS = 2  # in search of empty units that can go: the sparse formats skip the others


def plain_copy(model: nn.Module, masks: Mapping[str, Tensor] | None) -> nn.Module:
    """A copy in evaluation mode, masked, whose weights are plain tensors again.

    Raises:
        InvalidInputError: It is no model, it is not on the CPU, or has no values, or a mask is of no parameter.
        ShapeError: A mask of another shape.
        UnsupportedError: A wrapper such as FSDP holds the parameters, or the model cannot be copied.
    """
    refuse_model(model)
    model = unwrapped(model)
    if any(hasattr(type(module), "profile_counts") for module in model.modules()):
        raise InvalidInputError(
            "the model is compressed already.", fix="compress the model that it was made of, or fast.to_dense()"
        )
    lazy = next((name for name, p in (*model.named_parameters(), *model.named_buffers()) if is_lazy(p)), None)
    if lazy is not None:
        raise UnsupportedError(f"{lazy!r} is lazy: it has no shape yet.", fix="run one forward pass first")
    refuse_valueless([*model.parameters(), *model.buffers()], "compressing", fix="load the weights first")
    _refuse_devices(model)
    _check_masks(model, masks)
    try:
        copied = copy.deepcopy(model, _detached(model))
    except Exception as error:  # whatever the parts of a model raise when they are copied
        raise UnsupportedError(f"{type(model).__name__} cannot be copied.", error=error) from error
    if masks is not None:
        with torch.no_grad():
            tensors = dict(copied.named_parameters(remove_duplicate=False))
            for name, mask in masks.items():
                tensors[name].masked_fill_(~mask.to(tensors[name].device), 0.0)
    return bare_(copied)


def _detached(model: nn.Module) -> dict[int, Tensor]:
    """Copies of the tensors that hooks have computed into modules (torch's pruning), which do not copy themselves."""
    held = (value for module in model.modules() for value in vars(module).values())
    return {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and not value.is_leaf}


def bare_(model: nn.Module) -> nn.Module:
    """Let go of masks and computed weights, for inference: values stay, and are plain tensors."""
    Masks(model).remove()
    for module in model.modules():
        _make_plain_(module)
    return model.eval().requires_grad_(False)


def without_empty_units(model: nn.Module, example_inputs: Inputs) -> tuple[nn.Module | None, str]:
    """A copy of a model without the units whose weights are all zero, and a line about what was done.

    The copy's outputs are the model's, to rounding. There is none if nothing can go, or too little to be worth it: the
    sparse formats skip empty units, too, and removing a few breaks the blocks that others lie in.
    """
    nonzero = {name: p != 0 for name, p in model.named_parameters() if p.dim() > 1}
    masks = {name: kept for name, kept in nonzero.items() if _num_in_empty(kept)}
    before = sum(parameter.numel() for parameter in model.parameters())
    if 2 * sum(map(_num_in_empty, masks.values())) < _LEAST_GAIN * before:  # a unit goes with what reads it
        return None, "no empty units, or too few to be worth removing"
    smaller = copy.deepcopy(model)
    try:
        plan = plan_masked(smaller, example_inputs, masks, modes=("eval",), halvings=_HALVINGS)
        plan.apply_(smaller, tried_on=example_inputs)
    except SecateurError as error:
        return None, f"empty units stay: {error.problem}"
    after = sum(parameter.numel() for parameter in smaller.parameters())
    change = f"{before:,} -> {after:,} parameters"
    if before - after < _LEAST_GAIN * before:
        return None, f"empty units stay: without them it would be {change}"
    return smaller, f"empty units removed: {change}"


def _num_in_empty(kept: Tensor) -> int:
    """Number of entries in rows, or columns with all their window, that are zero."""
    others = tuple(range(2, kept.dim()))
    pairs = kept.any(others) if others else kept
    rows, columns = pairs.any(1), pairs.any(0)
    left = int(torch.count_nonzero(rows)) * int(torch.count_nonzero(columns))
    return kept.numel() - left * (kept[0, 0].numel() if kept.numel() else 1)


def _refuse_devices(model: nn.Module) -> None:
    """Refuse a model that is not on the CPU."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise InvalidInputError(
                "compressed models run on the CPU.", tensor=name, device=tensor.device, fix="compress(model.cpu(), …)"
            )


def _check_masks(model: nn.Module, masks: Mapping[str, Tensor] | None) -> None:
    """Refuse what is no mask of a parameter."""
    if masks is None:
        return
    if not isinstance(masks, Mapping):
        raise InvalidInputError("masks are bool tensors by parameter names.", given=type(masks).__name__)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    for name in masks:
        mask = masks[name]
        if name not in tensors:
            close = difflib.get_close_matches(str(name), tensors, 3, 0.3) or list(tensors)[:3]
            raise InvalidInputError(f"the model has no parameter {name!r}.", parameters=", ".join(close))
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise InvalidInputError(f"the mask of {name!r} is no bool tensor.", found=kind, fix="mask != 0")
        if mask.layout != torch.strided or mask.is_meta:
            raise InvalidInputError(f"the mask of {name!r} has no values that can be read.", fix="mask.to_dense()")
        if mask.shape != tensors[name].shape:
            raise ShapeError(
                f"the mask of {name!r} has another shape.", mask=tuple(mask.shape), parameter=tuple(tensors[name].shape)
            )


def _make_plain_(module: nn.Module) -> None:
    """Turn computed weights of one module into plain ones.

    `torch.nn.utils.parametrize.remove_parametrizations` would break the model that this one is a copy of: it takes the
    property from the class, which both share.
    """
    if parametrize.is_parametrized(module):
        values = {name: getattr(module, name) for name in module.parametrizations}  # type: ignore[union-attr]
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module.parametrizations
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=False))
    for hook in list(module._forward_pre_hooks.values()):
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, hook._tensor_name)
