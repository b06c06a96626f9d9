"""Whole units really removed: plans, budgets, and their application to a live model."""

from secateur.shrink.plan import GroupPlan as GroupPlan
from secateur.shrink.plan import NumberPlan as NumberPlan
from secateur.shrink.plan import ShrinkPlan as ShrinkPlan
from secateur.shrink.planning import Budget as Budget
from secateur.shrink.planning import plan_of as plan_of
from secateur.shrink.planning import plan_shrink as plan_shrink
from secateur.shrink.planning import shrink_ as shrink_
from secateur.shrink.unit_scores import UnitScore as UnitScore
from secateur.shrink.unit_scores import l1 as l1
from secateur.shrink.unit_scores import l2 as l2
from secateur.shrink.unit_scores import random as random
from secateur.shrink.verifying import Verification as Verification

__all__ = [
    "Budget",
    "GroupPlan",
    "NumberPlan",
    "ShrinkPlan",
    "UnitScore",
    "Verification",
    "l1",
    "l2",
    "plan_of",
    "plan_shrink",
    "random",
    "shrink_",
]
