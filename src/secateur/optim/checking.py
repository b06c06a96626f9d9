"""What the optimizers of kept weights refuse, before anything is stepped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from secateur._errors import ShapeError, UnsupportedError
from secateur.masks.ordering import memory_order
from secateur.masks.packing import check_overlap, count_kept, num_bytes
from secateur.optim.members import Kept, Masked, Whole

__all__ = [
    "FIXED",
    "check_gradient",
    "check_memory",
    "check_moments",
    "check_options",
    "check_parameters",
    "check_state",
    "check_weights",
]

FIXED = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
"""Options of torch's optimizers that have this one value here."""

_RELOAD = "optimizer.load_state_dict(optimizer.state_dict()) brings the state to the parameters' dtypes and devices"


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse those of torch's options that have no meaning here.

    Raises:
        UnsupportedError: One of them is asked for.
    """
    for name in FIXED:
        if options.get(name):
            raise UnsupportedError(
                f"{kind} has no {name} form: it steps kept weights with kernels of its own, and all others as torch's "
                "fused optimizers do.",
                asked=f"{name}={options[name]}",
                fix=f"leave {name} out",
            )


def check_parameters(kind: str, parameters: Any) -> None:
    """Refuse parameters of kinds that are not supported; what is no parameter at all is refused by torch.

    Raises:
        UnsupportedError: A complex parameter.
    """
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        tensor = parameter[1] if isinstance(parameter, tuple) else parameter
        if isinstance(tensor, Tensor) and tensor.is_complex():
            raise UnsupportedError(
                f"{kind} does not step complex parameters.",
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                fix=f"torch.optim.{kind.removeprefix('Sparse')} does",
            )


def check_weights(parameter: Tensor, kept: Kept) -> None:
    """Refuse data, put in place by hand, that a mask cannot be held on.

    Raises:
        ShapeError: It has another shape than the mask.
        UnsupportedError: Its entries share memory with each other.
    """
    if parameter.shape != kept.mask.bits.shape:
        raise ShapeError(
            "a masked parameter was given data of another shape than its mask.",
            parameter=tuple(parameter.shape),
            mask=tuple(kept.mask.bits.shape),
            fix="secateur.resize_(module, name, dim=…, keep=…) cuts parameter, mask and optimizer state together",
        )
    if not parameter.is_contiguous():
        check_overlap(parameter)


def check_gradient(kind: str, parameter: Tensor, gradient: Tensor) -> None:
    """Refuse a gradient that is sparse, or belongs to what the parameter was before.

    Raises:
        UnsupportedError: A sparse gradient, or one of another dtype or device.
        ShapeError: One of another shape.
    """
    if gradient.layout != torch.strided:
        raise UnsupportedError(
            f"{kind} does not take sparse gradients.",
            shape=tuple(parameter.shape),
            fix="nn.Embedding(…, sparse=False), or torch.optim.SparseAdam for this parameter",
        )
    if gradient.shape != parameter.shape:
        raise ShapeError(
            "a gradient has another shape than its parameter.",
            gradient=tuple(gradient.shape),
            parameter=tuple(parameter.shape),
            fix="optimizer.zero_grad() before the next backward pass",
        )
    if gradient.dtype != parameter.dtype or gradient.device != parameter.device:
        raise UnsupportedError(
            "a gradient has another dtype or device than its parameter.",
            gradient=_form(gradient),
            parameter=_form(parameter),
            fix="optimizer.zero_grad() before the next backward pass",
        )


def check_moments(each: Whole | Masked, moments: Iterable[Tensor]) -> None:
    """Refuse state that does not belong to what is stepped of a parameter.

    Args:
        each: The parameter.
        moments: The entries of its state that have one value for each weight that is stepped.

    Raises:
        ShapeError: One has another length or shape.
        UnsupportedError: One has another dtype or device.
    """
    shape, dtype, device = each.shape(), each.parameter.dtype, each.parameter.device
    for moment in moments:
        if moment.shape != shape:
            raise ShapeError(
                "the optimizer's state has another shape than what is stepped of its parameter.",
                state=tuple(moment.shape),
                stepped=tuple(shape),
                parameter=tuple(each.parameter.shape),
                fix="load a state dict, or delete optimizer.state[parameter], if it was changed by hand",
            )
        if moment.dtype != dtype or moment.device != device:
            raise UnsupportedError(
                "the optimizer's state has another dtype or device than its parameter, which was converted or moved "
                "after the first step.",
                state=_form(moment),
                parameter=_form(each.parameter),
                fix=_RELOAD,
            )


def check_state(parameter: Tensor, moments: Sequence[Tensor], bits: Tensor | None) -> None:
    """Refuse state that is not of the form that it is said to have, before it is brought to another.

    Args:
        parameter: The parameter.
        moments: Entries of the state that have one value a weight.
        bits: Mask that they are compact for; None if they are dense.

    Raises:
        ShapeError: They have another shape, or the mask has.
    """
    shape = parameter.shape if bits is None else _compact_shape(parameter, bits)
    for moment in moments:
        if moment.shape != shape:
            raise ShapeError(
                "the optimizer's state has another shape than its parameter.",
                state=tuple(moment.shape),
                expected="a length that the mask beside it has" if shape is None else tuple(shape),
                parameter=tuple(parameter.shape),
                fix="secateur.relink_(model, optimizer), if the parameter was cut by hand; load a state dict, or "
                "delete optimizer.state[parameter], if the state was changed by hand",
            )


def _compact_shape(parameter: Tensor, bits: object) -> torch.Size | None:
    """Of what a mask keeps of a parameter; None if it is no mask of such a parameter."""
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.shape != (num_bytes(parameter.numel()),):
        return None
    return torch.Size([count_kept(bits)])


def check_memory(masked: Iterable[Tensor], whole: Iterable[Tensor]) -> None:
    """Refuse masked parameters that share memory with others: whichever is stepped last would undo the mask.

    Parameters with gaps between their entries are not looked at.

    Raises:
        UnsupportedError: Two do.
    """
    spans = [*_spans(masked, is_masked=True), *_spans(whole, is_masked=False)]
    reached: tuple[int, int, bool, Tensor] | None = None
    for span in sorted(spans, key=lambda span: span[:2]):
        if reached is not None and span[0] < reached[1] and (span[2] or reached[2]):
            raise UnsupportedError(
                "a masked parameter shares memory with another parameter: masked weights would not stay 0.",
                shapes=(tuple(reached[3].shape), tuple(span[3].shape)),
                fix="make them one parameter (first.weight = second.weight), or give one of them data.clone()",
            )
        if reached is None or span[1] > reached[1]:
            reached = span


def _spans(parameters: Iterable[Tensor], *, is_masked: bool) -> list[tuple[int, int, bool, Tensor]]:
    """First byte and end of the memory of each parameter that has no gaps."""
    solid = [p for p in parameters if p.numel() and p.data_ptr() and memory_order(p) is not None]
    return [(p.data_ptr(), p.data_ptr() + p.nbytes, is_masked, p) for p in solid]


def _form(tensor: Tensor) -> str:
    """Dtype and device, for messages."""
    return f"{tensor.dtype} on {tensor.device}"
