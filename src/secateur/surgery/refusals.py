"""Tensors and models that cannot be resized in place, each with the reason; asked before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError
from secateur.surgery.places import Place

__all__ = ["computed_weight", "refuse_call", "refuse_shared", "refuse_tensor"]


def refuse_call() -> None:
    """Refuse to work where new data would not be what it seems.

    Raises:
        InvalidInputError: The call is made inside ``torch.inference_mode()`` or ``parametrize.cached()``.
    """
    if torch.is_inference_mode_enabled():
        raise InvalidInputError(
            "called inside torch.inference_mode(), where new parameter data could never be trained again.",
            fix="call it outside, or under torch.no_grad()",
        )
    if _compat.is_caching_parametrizations():
        raise InvalidInputError(
            "called inside parametrize.cached(), which goes on with weights of the old shape.",
            fix="call it outside the with block",
        )


def refuse_tensor(name: str, tensor: Tensor) -> None:
    """Refuse tensors whose data cannot be replaced soundly.

    Raises:
        UnsupportedError: The tensor is uninitialised, sparse, quantized, distributed, shared or made in inference mode.
    """
    why = _reason(tensor)
    if why:
        raise UnsupportedError(f"cannot change {name!r}: {why[0]}.", tensor=type(tensor).__name__, fix=why[1])


def _reason(tensor: Tensor) -> tuple[str, str] | None:
    """Why a tensor is refused and what to do, None if it is not."""
    if nn.parameter.is_lazy(tensor):
        return "it is a lazy parameter that has no shape yet", "run one forward pass first"
    return _reason_of_kind(tensor) or _reason_of_use(tensor)


def _reason_of_kind(tensor: Tensor) -> tuple[str, str] | None:
    """Kinds of tensors that hold their data in another way."""
    if tensor.is_quantized:
        return "it is quantized", "prune the float model, then quantize it"
    if tensor.layout != torch.strided:
        return f"its layout is {tensor.layout}", "parameter.to_dense()"
    if _compat.has_inner_tensors(tensor):
        return "its class keeps the data in other tensors (of one rank, or packed)", "change the plain model first"
    return None


def _reason_of_use(tensor: Tensor) -> tuple[str, str] | None:
    """Ways of using a tensor that a resize would break."""
    if tensor.is_inference():
        return "it was made inside torch.inference_mode()", "make the model outside inference mode"
    if not tensor.is_leaf:
        return "it is computed from other tensors", "name the parameter that it is computed from"
    if hasattr(tensor, "_in_backward_optimizers"):
        return "its optimizer steps inside backward, from hooks that a resize would lose", "apply that optimizer later"
    if tensor.device.type == "cpu" and tensor.untyped_storage().is_shared():
        return "its memory is shared with other processes, which would keep the old one", "resize before share_memory()"
    return None


def refuse_shared(place: Place, sharers: Sequence[Place]) -> None:
    """Refuse a tensor whose memory another parameter or buffer also uses (a view of a flat buffer).

    Args:
        place: Where the tensor that is to change is.
        sharers: First places of all tensors of the model in the same memory. Weights of one recurrent layer may be
            there, since the layer lays them out anew.

    Raises:
        UnsupportedError: Another tensor shares its storage; it would keep the old memory.
    """
    for other in sharers:
        if other.tensor is place.tensor or (other.module is place.module and isinstance(place.module, nn.RNNBase)):
            continue
        raise UnsupportedError(
            f"cannot resize {place.name!r}: {other.name!r} uses the same memory and would keep the old one.",
            fix="give each its own: parameter.data = parameter.data.clone()",
        )


def computed_weight(place: Place, why: str, *parts: object) -> UnsupportedError:
    """The error for a computed weight that is left alone.

    Args:
        place: Where the weight, or the tensor that it is made of, is.
        why: What is in the way.
        *parts: What computes the weight.
    """
    kinds = ", ".join(type(part).__name__.lstrip("_") for part in parts)
    return UnsupportedError(
        f"cannot resize {place.name!r}: it is computed by {kinds}.",
        why=why,
        fix="remove_parametrizations(module, name, leave_parametrized=True), resize, then parametrize it again",
    )
