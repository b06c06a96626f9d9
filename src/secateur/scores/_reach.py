"""Gradients that autograd is asked for by name, and why it sometimes does not find them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateur._errors import InvalidInputError, UnsupportedError

__all__ = ["gradients", "refuse_hidden"]


def gradients(loss: Tensor, weights: Mapping[str, nn.Parameter], *, create_graph: bool = False) -> dict[str, Tensor]:
    """Gradients of a loss with respect to those weights on which it depends; ``.grad`` is not touched.

    Raises:
        InvalidInputError: The loss function has frozen a weight, or has run the backward pass itself.
        UnsupportedError: Some of the graph is hidden, see `refuse_hidden`.
    """
    frozen = [name for name, weight in weights.items() if not weight.requires_grad]
    if frozen:
        raise InvalidInputError(
            f"the loss function has frozen {frozen[0]!r}, which it is to be scored by.",
            frozen=len(frozen),
            fix="freeze nothing in there, or leave these weights out with include=[…]",
        )
    try:
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, allow_unused=True)
    except RuntimeError as error:
        refuse_hidden(loss)
        if "backward through the graph a second time" in str(error):
            raise InvalidInputError(
                "the loss function has run backward() itself, and with it the graph is gone.",
                fix="return the loss as it is; its gradients are taken here, and .grad stays as it was",
            ) from error
        raise
    if any(each is None for each in found):
        refuse_hidden(loss)
    with torch.set_grad_enabled(create_graph):
        return {name: each.to_dense() for name, each in zip(weights, found, strict=True) if each is not None}


def refuse_hidden(result: Tensor) -> None:
    """Refuse a graph of which reentrant checkpoints hide a part: weights in there seem to have no gradient.

    Raises:
        UnsupportedError: There is such a checkpoint.
    """
    seen, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedError(
                "cannot score through torch.utils.checkpoint with use_reentrant=True: autograd does not see inside.",
                fix="use_reentrant=False, or no checkpoints while scoring "
                "(transformers: model.gradient_checkpointing_disable())",
            )
        left.extend(following for following, _ in node.next_functions)
