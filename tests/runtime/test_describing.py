"""Models of torch's own layers as text, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from secateur import InvalidInputError
from secateur.runtime.describing import build, description

DESCRIBED: dict[str, Callable[[], nn.Module]] = {
    "a layer": lambda: nn.Linear(3, 2),
    "no bias": lambda: nn.Linear(3, 2, bias=False),
    "an MLP": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(4, 1)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Sequential(), nn.GELU("tanh")), nn.Flatten(1)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 4, (3, 1), stride=2, padding=(1, 0), dilation=2, bias=False),
        nn.BatchNorm2d(4, eps=1e-3, affine=False),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Conv1d(4, 4, 3, padding="same", groups=2, padding_mode="reflect"),
        nn.ConvTranspose2d(4, 2, 2, output_padding=0),
    ),
    "norms": lambda: nn.Sequential(
        nn.LayerNorm((3, 2)), nn.GroupNorm(2, 4), nn.InstanceNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)
    ),
    "an embedding": lambda: nn.Sequential(
        nn.Embedding(7, 3, padding_idx=2), nn.PReLU(3), nn.Softmax(dim=-1), nn.Sigmoid(), nn.Identity()
    ),
    "named parts": lambda: named(),
    "another dtype": lambda: nn.Sequential(nn.Linear(3, 2)).bfloat16(),
}


def named() -> nn.Module:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(3, 2))
    model.add_module("last", nn.Tanh())
    return model


@pytest.mark.parametrize("name", DESCRIBED)
def test_model_is_built_again_from_its_text(name: str) -> None:
    model = DESCRIBED[name]()
    found = description(model)
    again = build(json.loads(json.dumps(found)))
    assert repr(again) == repr(model)
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in model.state_dict().items()}
    assert description(again) == found


class Own(nn.Module):
    pass


class Renamed(nn.Linear):
    pass


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def watched(how: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    getattr(model[0], how)(lambda *_: None)
    return model


def overridden() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].forward = lambda x: 2 * x
    return model


def narrower() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].weight = nn.Parameter(torch.ones(3, 2))
    return model


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "code of its own": lambda: nn.Sequential(nn.Linear(3, 3), Own()),
    "a subclass": lambda: nn.Sequential(Renamed(3, 3)),
    "a shared layer": shared,
    "parts of parts": lambda: nn.MultiheadAttention(4, 2),
    "a list of modules": lambda: nn.ModuleList([nn.Linear(3, 3)]),
    "arguments that are not kept": lambda: nn.LSTM(3, 3),
    "a hook": lambda: watched("register_forward_hook"),
    "a pre-hook": lambda: watched("register_forward_pre_hook"),
    "a forward of its own": overridden,
    "another shape": narrower,
    "a parametrization": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3))),
    "arguments that are no plain values": lambda: nn.CrossEntropyLoss(torch.ones(3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_have_no_text(name: str) -> None:
    assert description(OTHERS[name]()) is None


DAMAGED: dict[str, Any] = {
    "no dict": [],
    "nothing": {},
    "no type": {"arguments": {}},
    "no arguments": {"type": "Linear"},
    "an unknown type": {"type": "Lineal", "arguments": {}},
    "a module": {"type": "functional", "arguments": {}},
    "a function": {"type": "factory_kwargs", "arguments": {}},
    "a class that is no layer": {"type": "Parameter", "arguments": {}},
    "a wrapper": {"type": "DataParallel", "arguments": {"module": None}},
    "a type that is no text": {"type": 5, "arguments": {}},
    "another argument": {"type": "Linear", "arguments": {"in_features": 3, "out_features": 2, "more": 1}},
    "a missing argument": {"type": "Linear", "arguments": {"in_features": 3}},
    "an argument of another kind": {"type": "Linear", "arguments": {"in_features": "a", "out_features": 2}},
    "no parts": {"type": "Sequential"},
    "a part that is none": {"type": "Sequential", "parts": [["0", 5]]},
    "a part without a name": {"type": "Sequential", "parts": [["", {"type": "ReLU", "arguments": {}}]]},
    "parts that are no pairs": {"type": "Sequential", "parts": [["0"]]},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_text_is_refused(what: str) -> None:
    with pytest.raises(InvalidInputError, match=r"damaged|only layers of torch\.nn"):
        build(DAMAGED[what])
