"""Prune PyTorch models while they go on training."""

from importlib.metadata import version as _version

from secateur import allocation as allocation
from secateur import checkpoints as checkpoints
from secateur import doctor as doctor
from secateur import dst as dst
from secateur import graph as graph
from secateur import interchange as interchange
from secateur import masks as masks
from secateur import optim as optim
from secateur import patterns as patterns
from secateur import report as report
from secateur import runtime as runtime
from secateur import schedules as schedules
from secateur import scores as scores
from secateur import shrink as shrink
from secateur import surgery as surgery
from secateur import tickets as tickets
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
from secateur.dst import SET as SET
from secateur.dst import GraNet as GraNet
from secateur.dst import RigL as RigL
from secateur.graph import analyze as analyze
from secateur.masks import Masks as Masks
from secateur.masks import prune_ as prune_
from secateur.runtime import compress as compress
from secateur.runtime import load_compressed as load_compressed
from secateur.runtime import profile as profile
from secateur.shrink import Budget as Budget
from secateur.shrink import ShrinkPlan as ShrinkPlan
from secateur.shrink import load_ as load_
from secateur.shrink import plan_shrink as plan_shrink
from secateur.shrink import save as save
from secateur.shrink import shrink_ as shrink_
from secateur.shrink import shrink_schedule as shrink_schedule
from secateur.surgery import grow_ as grow_
from secateur.surgery import resize_ as resize_
from secateur.surgery import transaction as transaction

__version__ = _version("secateur")

__all__ = [
    "SET",
    "Budget",
    "GraNet",
    "HolderError",
    "InfeasibleError",
    "InvalidInputError",
    "Masks",
    "RigL",
    "SecateurError",
    "ShapeError",
    "ShrinkPlan",
    "StaleGraphError",
    "UnknownStateError",
    "UnsupportedError",
    "allocation",
    "analyze",
    "compress",
    "diagnose",
    "grow_",
    "load_",
    "load_compressed",
    "patterns",
    "plan_shrink",
    "profile",
    "prune_",
    "relink_",
    "resize_",
    "save",
    "scores",
    "shrink_",
    "shrink_schedule",
    "transaction",
    "watch",
]
