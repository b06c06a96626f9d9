"""Checkpoints that the tests of this folder read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import safetensors.torch
from torch import Tensor

Write = Callable[..., Path]


@pytest.fixture
def sharded(tmp_path: Path) -> Write:
    """A function that writes tensors into several files with an index, in a folder of its own."""

    def write(tensors: Mapping[str, Tensor], shards: int = 2) -> Path:
        folder = tmp_path / "sharded"
        folder.mkdir()
        where = {}
        for number in range(shards):
            name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            part = {key: tensors[key] for key in list(tensors)[number::shards]}
            safetensors.torch.save_file(part, folder / name, {"format": "pt"})
            where |= dict.fromkeys(part, name)
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write
