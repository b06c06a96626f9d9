"""Whole units really removed: plans, budgets, and their application to a live model."""

from secateur.shrink import attention as attention
from secateur.shrink.budgets import Budget as Budget
from secateur.shrink.composing import plan_of as plan_of
from secateur.shrink.dead import plan_masked as plan_masked
from secateur.shrink.grow_plan import GrowPlan as GrowPlan
from secateur.shrink.growing import plan_grow as plan_grow
from secateur.shrink.hub import save_pretrained as save_pretrained
from secateur.shrink.latency import LatencyTable as LatencyTable
from secateur.shrink.latency import TimeGrid as TimeGrid
from secateur.shrink.numbers import NumberPlan as NumberPlan
from secateur.shrink.ordering import Scope as Scope
from secateur.shrink.overrides import GroupOverride as GroupOverride
from secateur.shrink.plan import ShrinkPlan as ShrinkPlan
from secateur.shrink.plan_parts import GroupPlan as GroupPlan
from secateur.shrink.planning import plan_shrink as plan_shrink
from secateur.shrink.planning import shrink_ as shrink_
from secateur.shrink.saving import load_ as load_
from secateur.shrink.saving import save as save
from secateur.shrink.schedule import ShrinkSchedule as ShrinkSchedule
from secateur.shrink.schedule import shrink_schedule as shrink_schedule
from secateur.shrink.timing import measure_latency as measure_latency
from secateur.shrink.unit_scores import DATA_SCORES as DATA_SCORES
from secateur.shrink.unit_scores import UNIT_SCORES as UNIT_SCORES
from secateur.shrink.unit_scores import UnitScore as UnitScore
from secateur.shrink.unit_scores import activation_mean as activation_mean
from secateur.shrink.unit_scores import activation_variance as activation_variance
from secateur.shrink.unit_scores import batch_norm_scale as batch_norm_scale
from secateur.shrink.unit_scores import fisher as fisher
from secateur.shrink.unit_scores import fpgm as fpgm
from secateur.shrink.unit_scores import l1 as l1
from secateur.shrink.unit_scores import l2 as l2
from secateur.shrink.unit_scores import lamp as lamp
from secateur.shrink.unit_scores import over_batches as over_batches
from secateur.shrink.unit_scores import random as random
from secateur.shrink.unit_scores import taylor as taylor
from secateur.shrink.verifying import Verification as Verification

__all__ = [
    "DATA_SCORES",
    "UNIT_SCORES",
    "Budget",
    "GroupOverride",
    "GroupPlan",
    "GrowPlan",
    "LatencyTable",
    "NumberPlan",
    "Scope",
    "ShrinkPlan",
    "ShrinkSchedule",
    "TimeGrid",
    "UnitScore",
    "Verification",
    "activation_mean",
    "activation_variance",
    "batch_norm_scale",
    "fisher",
    "fpgm",
    "l1",
    "l2",
    "lamp",
    "load_",
    "measure_latency",
    "over_batches",
    "plan_grow",
    "plan_masked",
    "plan_of",
    "plan_shrink",
    "random",
    "save",
    "save_pretrained",
    "shrink_",
    "shrink_schedule",
    "taylor",
]
