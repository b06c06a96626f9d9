"""The table of methods."""

from __future__ import annotations

from secateur.dst.gradual import Gradual
from secateur.dst.granet import GraNet
from secateur.dst.mest import MEST
from secateur.dst.rigl import RigL
from secateur.dst.set import SET
from secateur.dst.static import Static
from secateur.dst.training import SparseTraining

__all__ = ["METHODS"]

METHODS: dict[str, type[SparseTraining]] = {
    "static": Static,
    "set": SET,
    "rigl": RigL,
    "mest": MEST,
    "granet": GraNet,
    "gradual": Gradual,
}
"""Methods by name; the contract tests run over this table. All take a model, an optimizer and ``sparsity=``."""
