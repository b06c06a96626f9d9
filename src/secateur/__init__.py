"""Prune PyTorch models while they go on training."""

from secateur import allocation as allocation
from secateur import doctor as doctor
from secateur import masks as masks
from secateur import patterns as patterns
from secateur import scores as scores
from secateur import surgery as surgery
from secateur._errors import HolderError as HolderError
from secateur._errors import InfeasibleError as InfeasibleError
from secateur._errors import InvalidInputError as InvalidInputError
from secateur._errors import SecateurError as SecateurError
from secateur._errors import ShapeError as ShapeError
from secateur._errors import StaleGraphError as StaleGraphError
from secateur._errors import UnknownStateError as UnknownStateError
from secateur._errors import UnsupportedError as UnsupportedError
from secateur.doctor import diagnose as diagnose
from secateur.doctor import relink_ as relink_
from secateur.doctor import watch as watch
from secateur.masks import Masks as Masks
from secateur.masks import prune_ as prune_
from secateur.surgery import grow_ as grow_
from secateur.surgery import resize_ as resize_
from secateur.surgery import transaction as transaction

__all__ = [
    "HolderError",
    "InfeasibleError",
    "InvalidInputError",
    "Masks",
    "SecateurError",
    "ShapeError",
    "StaleGraphError",
    "UnknownStateError",
    "UnsupportedError",
    "allocation",
    "diagnose",
    "doctor",
    "grow_",
    "masks",
    "patterns",
    "prune_",
    "relink_",
    "resize_",
    "scores",
    "surgery",
    "transaction",
    "watch",
]
