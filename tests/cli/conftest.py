"""The command line, run in this process, and models for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from secateur.cli import main

MODELS = '''
"""Models of a user."""

import subprocess
import sys

from torch import nn


def mlp(width=16, act="relu"):
    torch_act = {"relu": nn.ReLU, "gelu": nn.GELU}[act]
    return nn.Sequential(nn.Linear(8, width), torch_act(), nn.Linear(width, width), torch_act(), nn.Linear(width, 4))


def noisy():
    print("made by hand")
    return mlp()


def loud():
    subprocess.run(["echo", "made by a program"])
    return mlp()


def ending():
    sys.exit()


def broken():
    raise KeyError("no such act")


class Net:
    tiny = staticmethod(lambda: mlp(6))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Conv2d(6, 2, 3),
    )


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        if x.shape[1] != 8:
            raise ValueError(f"eight features, please, not {x.shape[1]}")
        return self.fc(x)


number = 3
'''


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on standard output."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `secateur` with some words."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        return Result(status, *capsys.readouterr())

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, in which there is a module ``my_models``."""
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("my_models", "my_broken"):
        sys.modules.pop(name, None)


def llama() -> LlamaForCausalLM:
    """Two layers, eight heads of queries and four of keys."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(params=["one file", "shards"])
def llama_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that transformers has written, whole and sharded."""
    llama().save_pretrained(tmp_path / "llama", **({"max_shard_size": "40KB"} if request.param == "shards" else {}))
    return tmp_path / "llama"
