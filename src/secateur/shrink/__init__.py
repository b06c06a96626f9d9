"""Whole units really removed: plans, budgets, and their application to a live model."""

from secateur.shrink import attention as attention
from secateur.shrink.plan import GroupPlan as GroupPlan
from secateur.shrink.plan import NumberPlan as NumberPlan
from secateur.shrink.plan import ShrinkPlan as ShrinkPlan
from secateur.shrink.planning import Budget as Budget
from secateur.shrink.planning import plan_of as plan_of
from secateur.shrink.planning import plan_shrink as plan_shrink
from secateur.shrink.planning import shrink_ as shrink_
from secateur.shrink.saving import load_ as load_
from secateur.shrink.saving import save as save
from secateur.shrink.unit_scores import UnitScore as UnitScore
from secateur.shrink.unit_scores import batch_norm_scale as batch_norm_scale
from secateur.shrink.unit_scores import fpgm as fpgm
from secateur.shrink.unit_scores import l1 as l1
from secateur.shrink.unit_scores import l2 as l2
from secateur.shrink.unit_scores import random as random
from secateur.shrink.unit_scores import taylor as taylor
from secateur.shrink.verifying import Verification as Verification

__all__ = [
    "Budget",
    "GroupPlan",
    "NumberPlan",
    "ShrinkPlan",
    "UnitScore",
    "Verification",
    "batch_norm_scale",
    "fpgm",
    "l1",
    "l2",
    "load_",
    "plan_of",
    "plan_shrink",
    "random",
    "save",
    "shrink_",
    "taylor",
]
