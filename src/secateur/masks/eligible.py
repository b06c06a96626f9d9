"""Which parameters can be masked, and which are when nothing is said."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError
from secateur._names import Selectors, chosen_names, computed_by, match, owner_of, tied_names

__all__ = ["Selectors", "check_maskable", "eligible_names", "find", "left_out", "refuse_shared", "unmaskable"]


def eligible_names(model: nn.Module, include: Selectors, exclude: Selectors) -> list[str]:
    """Names of the parameters to mask.

    Args:
        model: The model.
        include: Globs over dotted names or module types; if left out, all weights: parameters of two or more dims that
            belong to no norm and are no bias. A module type means the weights of its modules (all their parameters if
            there are none); a glob means every parameter that it matches. A parameter with several names is meant by
            any of them.
        exclude: Globs or module types that are left out.

    Returns:
        First names, in the model's order.

    Raises:
        InvalidInputError: A selector matches nothing, or nothing is left.
        UnsupportedError: One of the parameters cannot be masked, or shares its memory with another parameter. Where
            nothing was included by name, weights that are computed from others are left out instead, as long as any are
            left.
    """
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    dropped = set() if exclude is None else {first[n] for n in match(model, exclude)}
    names = [name for name in chosen_names(model, include) if name not in dropped]
    if include is None:
        names = [name for name in names if not computed_by(model, name)] or names
    if not names:
        raise InvalidInputError(
            f"nothing in {type(model).__name__} is left to mask.",
            parameters=len(first),
            fix="biases and norms are left out by default; include=['*'] takes all parameters",
        )
    for name in names:
        check_maskable(model, name)
    refuse_shared(model, set(names))
    return names


def left_out(model: nn.Module, exclude: Selectors) -> dict[str, str]:
    """Weights that are not masked though nothing was said of them, since others are computed from them, and why.

    Args:
        model: The model.
        exclude: Globs or module types that are left out on purpose.

    Returns:
        The reasons by first name.
    """
    dropped = set() if exclude is None else set(match(model, exclude))
    made_by = {name: computed_by(model, name) for name in chosen_names(model, None) if name not in dropped}
    return {
        name: f"it is part of {maker}: secateur.interchange.from_torch_prune or remove_parametrizations first"
        for name, maker in made_by.items()
        if maker
    }


def find(model: nn.Module, name: str) -> nn.Parameter:
    """A parameter by any of its names.

    Raises:
        InvalidInputError: There is no such parameter.
        UnsupportedError: There is such a tensor, but it is computed from parameters.
    """
    module, leaf = owner_of(model, name)
    parameter = module._parameters.get(leaf)
    if parameter is None:
        _refuse_computed(model, name)
        raise InvalidInputError(
            f"{type(model).__name__} has no parameter {name!r}.",
            has=", ".join([n for n, _ in model.named_parameters()][:8]) or "none",
        )
    return parameter


def check_maskable(model: nn.Module, name: str) -> None:
    """Refuse a parameter whose zeros cannot be held.

    Args:
        model: The model.
        name: Name of one of its parameters.

    Raises:
        UnsupportedError: The parameter is lazy, sparse, quantized …, or a weight is computed from it.
    """
    _refuse_computed(model, name)
    why = unmaskable(find(model, name))
    if why:
        raise UnsupportedError(f"cannot mask {name!r}: {why[0]}.", fix=why[1])


def unmaskable(tensor: Tensor) -> tuple[str, str] | None:
    """Why a tensor cannot be masked and what to do, None if it can."""
    if nn.parameter.is_lazy(tensor):
        return "it is a lazy parameter that has no shape yet", "run one forward pass first"
    if tensor.is_quantized:
        return "it is quantized", "mask the float model, then quantize it"
    if tensor.layout != torch.strided:
        return f"its layout is {tensor.layout}", "parameter.to_dense()"
    if _compat.has_inner_tensors(tensor):
        return "its class keeps the data in other tensors (of one rank, or packed)", "mask the plain model first"
    if tensor.is_inference():
        return "it was made inside torch.inference_mode()", "make the model outside inference mode"
    return None


def refuse_shared(model: nn.Module, names: set[str]) -> None:
    """Refuse parameters whose memory is that of other parameters, which would get zeros that no mask of theirs has.

    Args:
        model: The model.
        names: First names of the parameters.

    Raises:
        UnsupportedError: One of them is in the memory of another parameter.
    """
    spans = sorted(
        (str(parameter.device), parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes, name)
        for name, parameter in model.named_parameters()
        if _has_a_span(parameter)
    )
    before = ("", 0, 0, "")
    for span in spans:
        (device, _, end, one), (own_device, start, _, other) = before, span
        if device == own_device and start < end and not names.isdisjoint((one, other)):
            raise UnsupportedError(
                f"cannot mask {one!r}: {other!r} is another parameter in the same memory.",
                fix="tie them as one parameter (a.weight = b.weight), or parameter.data = parameter.data.clone()",
            )
        before = max(before, span, key=lambda each: (each[0], each[2]))


def _has_a_span(parameter: nn.Parameter) -> bool:
    """Whether a parameter's entries are one stretch of memory, all of it its own."""
    if nn.parameter.is_lazy(parameter) or parameter.is_meta or unmaskable(parameter) or _compat.is_fake(parameter):
        return False
    reach = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return 0 < parameter.numel() == reach


def _refuse_computed(model: nn.Module, name: str) -> None:
    """Refuse weights that are computed from parameters, and the parameters that they are computed from."""
    why = computed_by(model, name)
    if why:
        raise UnsupportedError(
            f"cannot mask {name!r}: it is computed by, or is part of, {why}.",
            why="zeros in the parts of a computed weight are no zeros in the weight",
            fix="remove the parametrization first (remove_parametrizations, prune.remove), then mask the plain weight; "
            "secateur.interchange.from_torch_prune keeps the zeros of torch.nn.utils.prune",
        )
