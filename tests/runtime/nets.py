"""A small net, and the row of its profile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secateur.runtime.profile_result import ModelProfile
from secateur.runtime.profiling import profile

X = torch.randn(2, 3, 8, 8)


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(36, 5)
    )


def sizes(model: nn.Module, inputs: Any = X) -> ModelProfile:
    return profile({"it": model}, inputs, seconds=0)["it"]
