"""Masks: weights that are held at exactly zero through every optimizer step, beside the model as it is."""

from secateur.masks.collection import Masks as Masks
from secateur.masks.prune import prune_ as prune_

__all__ = ["Masks", "prune_"]
