"""What is said of the tensors of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import secateur
from secateur.checkpoints import inspect
from tests.checkpoints.conftest import Write

PEAK = """
import json, resource, sys
import torch
from secateur.checkpoints import inspect

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
found = inspect(sys.argv[1])
print(json.dumps([peak() - before, max(tensor.bytes for tensor in found.tensors)]))
"""


def tensors() -> dict[str, torch.Tensor]:
    """Tensors of all kinds."""
    torch.manual_seed(0)
    weight = torch.randn(64, 32)
    weight[5] = 0
    weight[:, [3, 4]] = 0
    return {
        "weight": weight,
        "copy": weight.clone(),
        "norm": torch.ones(64),
        "other_norm": torch.ones(64),
        "half": torch.eye(8).bfloat16(),
        "eighth": torch.eye(8).to(torch.float8_e4m3fn),
        "mask": torch.eye(4) > 0,
        "complex": torch.zeros(2, dtype=torch.complex64),
        "scalar": torch.tensor(0),
        "empty": torch.zeros(0, 4),
        "one_row": torch.zeros(1, 100),
    }


@pytest.mark.parametrize("kind", ["safetensors", "sharded", "torch"])
def test_zeros_channels_and_copies_are_found(kind: str, sharded: Write, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "sharded":
        path = sharded(tensors(), shards=3)
    elif kind == "torch":
        torch.save(tensors(), path)
    else:
        safetensors.torch.save_file(tensors(), path)
    found = {each.name: each for each in inspect(path).tensors}
    assert {name: each.zeros for name, each in found.items()} == {
        name: int((tensor.float() == 0).sum()) if not tensor.is_complex() else 2 for name, tensor in tensors().items()
    }
    assert (found["weight"].dead_outputs, found["weight"].dead_inputs) == (1, 2)
    assert (found["one_row"].dead_outputs, found["one_row"].dead_inputs) == (1, 100)
    assert found["norm"].dead_outputs == 0
    assert found["weight"].sparsity == (32 + 2 * 63) / (64 * 32)
    assert found["half"].dtype == "BF16"
    assert [sorted(names) for names in inspect(path).tied] == [["copy", "weight"]]


def test_totals_are_those_of_all_tensors(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(3), "b": torch.ones(5)}, tmp_path / "x", {"k": "v"})
    found = inspect(tmp_path / "x")
    assert (found.entries, found.zeros, found.sparsity, found.metadata) == (8, 3, 3 / 8, {"k": "v"})


def test_file_without_tensors_has_no_zeros(tmp_path: Path) -> None:
    safetensors.torch.save_file({}, tmp_path / "x")
    assert inspect(tmp_path / "x").sparsity == 0.0


def test_tensors_that_share_memory_in_a_torch_file_are_tied(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    torch.save({"embedding": weight, "head": weight, "other": torch.randn(4, 4)}, tmp_path / "x")
    assert inspect(tmp_path / "x").tied == (("embedding", "head"),)


def test_names_that_only_the_metadata_has_are_tied(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embedding": nn.Linear(3, 4, bias=False), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    safetensors.torch.save_model(model, tmp_path / "x")
    secateur.save(model, tmp_path / "y")
    for path in (tmp_path / "x", tmp_path / "y"):
        found = inspect(path)
        assert len(found.tensors) == 1
        assert [sorted(names) for names in found.tied] == [["embedding.weight", "head.weight"]]


def test_three_names_of_one_tensor_are_told_together(tmp_path: Path) -> None:
    weight = torch.randn(3, 3)
    safetensors.torch.save_file({"a": weight, "b": weight.clone()}, tmp_path / "x", {"c": "b", "note": "no tensor"})
    assert inspect(tmp_path / "x").tied == (("a", "b", "c"),)


def test_dtype_that_cannot_be_looked_at_has_unknown_zeros(tmp_path: Path) -> None:
    torch.save({"w": torch.eye(3).to_sparse(), "b": torch.zeros(2)}, tmp_path / "x")
    found = inspect(tmp_path / "x")
    assert [each.sparsity for each in found.tensors] == [None, 1.0]
    assert found.sparsity == 1.0


def test_masks_and_a_plan_are_told_apart_from_the_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    secateur.prune_(model, sparsity=0.5)
    plan = secateur.plan_shrink(model, torch.randn(2, 8), sparsity=0.5)
    secateur.save(model, tmp_path / "x", plan=plan)
    found = inspect(tmp_path / "x")
    assert {tensor.name for tensor in found.tensors} == set(model.state_dict())
    assert found.parts == {key: len(found.metadata[key]) for key in ("masks", "plan")}
    assert found.zeros == (8 * 16 + 16 * 4) // 2
    secateur.save(model, tmp_path / "y", masks=False)
    assert inspect(tmp_path / "y").parts == {}


def test_figures_are_plain_values(tmp_path: Path) -> None:
    safetensors.torch.save_file(tensors(), tmp_path / "x")
    for each in inspect(tmp_path / "x").tensors:
        assert json.loads(json.dumps(each.to_dict()))["zeros"] == each.zeros


def test_peak_memory_is_below_that_of_one_tensor(tmp_path: Path) -> None:
    weight = torch.randn(1 << 12, 1 << 12)
    weight[::2] = 0
    safetensors.torch.save_file({"a": weight, "b": torch.randn(1 << 12, 1 << 12)}, tmp_path / "x")
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    peak, largest = json.loads(done.stdout)
    assert largest == 64 << 20
    assert peak < largest
