"""Dense gradients of masked weights, asked for one step ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from secateur.masks.capture import Capture
from secateur.masks.mask import Mask

__all__ = ["Gradients", "ask_for_gradients", "forget_gradients", "take_gradients"]


def ask_for_gradients(masks: Iterable[Mask]) -> None:
    """Have gradients kept aside as they arrive, before they are masked, from now on."""
    for mask in masks:
        mask.capture = Capture()


def forget_gradients(masks: Iterable[Mask]) -> None:
    """Keep them no more, and free what was kept."""
    for mask in masks:
        mask.capture = None


def take_gradients(masks: Mapping[str, Mask]) -> Gradients:
    """The gradients that have been kept aside; none are from now on.

    Args:
        masks: Masks by dotted name.
    """
    arrived = {}
    for name, mask in masks.items():
        capture, mask.capture = mask.capture, None
        if capture is not None and capture.total is not None:
            arrived[name] = capture.total
    return Gradients(arrived, masks)


class Gradients(Mapping[str, Tensor]):
    """Dense gradients of the parameters that a backward pass has reached: what the optimizer saw, where it saw any.

    So clipping and the scale of a gradient scaler, which come after the backward pass, are in the values at kept
    places. They are put together when they are asked for, which costs a pass over the weights.

    Args:
        arrived: Dense gradients as the backward passes left them.
        masks: The masks of the same names, and more.
    """

    def __init__(self, arrived: Mapping[str, Tensor], masks: Mapping[str, Mask]) -> None:
        self.arrived = arrived
        self._masks = masks

    def __getitem__(self, name: str) -> Tensor:
        """One gradient."""
        arrived, mask = self.arrived[name], self._masks[name]
        held = mask.parameter.grad
        if held is None:  # freed in the backward pass, as training that steps in there does
            return arrived
        return torch.where(mask.bits.dense.to(arrived.device), held.detach().to_dense(), arrived)

    def __contains__(self, name: object) -> bool:
        """Whether there is one, which needs no pass over the weights."""
        return name in self.arrived

    def __iter__(self) -> Iterator[str]:
        """Names of the parameters."""
        return iter(self.arrived)

    def __len__(self) -> int:
        """Number of parameters."""
        return len(self.arrived)
