"""Dynamic sparse training: masks that drop some weights and grow others as training goes on."""

from __future__ import annotations

from secateur.dst.gradual import Gradual
from secateur.dst.granet import GraNet
from secateur.dst.history import Change, History, LayerChange, Writer, overlap
from secateur.dst.mest import MEST
from secateur.dst.moment import Moment, Rating
from secateur.dst.ratings import gradient, random, weight_and_gradient
from secateur.dst.registry import METHODS
from secateur.dst.rigl import RigL
from secateur.dst.set import SET
from secateur.dst.sr_ste import SRSTE
from secateur.dst.static import Static
from secateur.dst.training import SparseTraining

__all__ = [
    "MEST",
    "METHODS",
    "SET",
    "SRSTE",
    "Change",
    "GraNet",
    "Gradual",
    "History",
    "LayerChange",
    "Moment",
    "Rating",
    "RigL",
    "SparseTraining",
    "Static",
    "Writer",
    "gradient",
    "overlap",
    "random",
    "weight_and_gradient",
]
