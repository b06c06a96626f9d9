"""Every switch on torch's version and every optional import; nowhere else."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import nn

__all__ = ["optional", "optimizer_classes", "wrappers"]


def optional(name: str) -> ModuleType | None:
    """The module `name` if it is installed, else None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimizer of the installed ``torch.optim``, by name."""
    found = {
        name: value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    found.pop("Optimizer")
    return found


def wrappers() -> dict[type[nn.Module], str]:
    """Module classes that hold parameters in forms of their own, each with the reason why they are refused."""
    found: dict[type[nn.Module], str] = {
        nn.parallel.DistributedDataParallel: "its reducer keeps the old gradient accumulators and buckets"
    }
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        found[FullyShardedDataParallel] = "FSDP1 keeps parameters in flat shards that have no dims to cut"
    return found
