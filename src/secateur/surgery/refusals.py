"""Tensors and models that cannot be resized in place, each with the reason; asked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError

__all__ = ["refuse_call", "refuse_model", "refuse_shared", "refuse_tensor"]


def refuse_call() -> None:
    """Refuse to work inside inference mode.

    Raises:
        InvalidInputError: The call is made inside ``torch.inference_mode()``.
    """
    if torch.is_inference_mode_enabled():
        raise InvalidInputError(
            "called inside torch.inference_mode(), where new parameter data could never be trained again.",
            fix="call it outside, or under torch.no_grad()",
        )


def refuse_model(model: nn.Module) -> None:
    """Refuse models whose parameters are kept in forms of the wrapper's own.

    Raises:
        UnsupportedError: The model is, or contains, such a wrapper.
    """
    for name, module in model.named_modules():
        for kind, why in _compat.wrappers().items():
            if isinstance(module, kind):
                raise UnsupportedError(
                    f"cannot change a model inside {kind.__name__}: {why}.",
                    module=name or type(module).__name__,
                    fix="change the plain model first, then wrap it",
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
    if isinstance(tensor, UninitializedTensorMixin):
        return "it is a lazy parameter that has no shape yet", "run one forward pass first"
    if tensor.is_quantized:
        return "it is quantized", "prune the float model, then quantize it"
    if tensor.layout != torch.strided:
        return f"its layout is {tensor.layout}", "parameter.to_dense()"
    if _is_distributed(tensor):
        return "it is a DTensor, which has a shard on every rank", "change the model before it is distributed"
    if tensor.is_inference():
        return "it was made inside torch.inference_mode()", "make the model outside inference mode"
    if not tensor.is_leaf:
        return "it is computed from other tensors", "name the parameter that it is computed from"
    if hasattr(tensor, "_in_backward_optimizers"):
        return "its optimizer steps inside backward, from hooks that a resize would lose", "apply that optimizer later"
    if tensor.device.type == "cpu" and tensor.is_shared():
        return "its memory is shared with other processes, which would keep the old one", "resize before share_memory()"
    return None


def _is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def refuse_shared(tensor: Tensor, name: str, others: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse a tensor whose memory another parameter or buffer also uses (a view of a flat buffer).

    Args:
        tensor: The tensor that is to change.
        name: Its dotted name.
        others: All named tensors of the model.

    Raises:
        UnsupportedError: Another tensor shares its storage; it would keep the old memory.
    """
    if tensor.is_meta:
        return
    pointer = tensor.untyped_storage().data_ptr()
    for other_name, other in others:
        if other is tensor or other.is_meta or other.layout != torch.strided or not pointer:
            continue
        if not isinstance(other, UninitializedTensorMixin) and other.untyped_storage().data_ptr() == pointer:
            raise UnsupportedError(
                f"cannot resize {name!r}: {other_name!r} uses the same memory and would keep the old one.",
                fix="give each its own: parameter.data = parameter.data.clone()",
            )
