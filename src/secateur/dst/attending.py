"""How a method is attached to the steps of whichever optimizer trains a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

from secateur._errors import HolderError
from secateur.masks.mask import Mask
from secateur.masks.slots import masked_parameters

__all__ = ["check_unattended", "lead_of", "was_skipped"]


def check_unattended(model: nn.Module) -> None:
    """Refuse a model whose masks another method changes.

    Raises:
        HolderError: One does.
    """
    for mask in masked_parameters(model).values():
        if mask.listener is not None:
            raise HolderError(
                f"the masks of {type(model).__name__} are in the hands of {type(mask.listener).__name__} already.",
                fix="call its remove() first; the masks stay",
            )


def lead_of(masks: Mapping[str, Mask]) -> Mask:
    """The mask through which steps are noticed, once for all: the first one of a weight that is trained."""
    trained = [mask for mask in masks.values() if mask.parameter.requires_grad]
    return trained[0] if trained else next(iter(masks.values()))


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has had a fused optimizer skip this step; others are not even called then."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
