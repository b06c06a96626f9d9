"""Interchange: masks from, and to, other ways of pruning PyTorch models."""

from secateur.interchange.torch_prune import from_torch_prune as from_torch_prune
from secateur.interchange.torch_prune import to_torch_prune as to_torch_prune

__all__ = ["from_torch_prune", "to_torch_prune"]
