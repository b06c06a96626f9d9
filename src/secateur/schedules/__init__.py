"""Schedules: a number for every optimizer step. A schedule is a pure function of the step, so its state is the step."""

from __future__ import annotations

from secateur.schedules._constant import constant
from secateur.schedules._cosine import cosine
from secateur.schedules._cubic import cubic
from secateur.schedules._linear import linear
from secateur.schedules._one_shot import one_shot
from secateur.schedules._ramp import Ramp
from secateur.schedules._registry import CURVES, Curve, Schedule
from secateur.schedules._rising import check_rising

__all__ = [
    "CURVES",
    "Curve",
    "Ramp",
    "Schedule",
    "check_rising",
    "constant",
    "cosine",
    "cubic",
    "linear",
    "one_shot",
]
