"""Several processes that train one model: whether all of them have chosen the same masks."""

from __future__ import annotations

import hashlib

import torch.distributed
from torch import nn

from secateur._errors import UnsupportedError
from secateur.masks import Masks

__all__ = ["refuse_disagreement"]


def refuse_disagreement(model: nn.Module) -> None:
    """Refuse masks that other processes have otherwise; called by all of them, each of which then raises.

    Args:
        model: The model of this process.

    Raises:
        UnsupportedError: The masks differ.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    digests: list[str] = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, _digest(model))
    if len(set(digests)) > 1:
        raise UnsupportedError(
            f"the processes that train {type(model).__name__} have chosen different masks, each by data of its own.",
            different=f"{len(set(digests))} of {len(digests)}",
            fix="scores of the same batches everywhere, or all_reduce what the score returns, to average it",
        )


def _digest(model: nn.Module) -> str:
    """A fingerprint of all masks."""
    found = hashlib.sha256()
    for name, tensor in Masks(model).state_dict().items():
        found.update(name.encode())
        found.update(tensor.cpu().numpy().tobytes())
    return found.hexdigest()
