"""What every test starts from: one thread, fixed seeds, no network."""

from __future__ import annotations

import os
import random

# Before any library that would look at it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# Examples are the same on every run, and slow machines do not fail: what is tested are values, never time.
settings.register_profile(
    "secateur", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("secateur")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
