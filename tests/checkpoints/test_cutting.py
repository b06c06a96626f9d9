"""Checkpoints cut on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from secateur import InvalidInputError, ShapeError
from secateur.checkpoints import Cut, cut_checkpoint, open_checkpoint, stored
from tests.checkpoints.conftest import Write

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64)

PEAK = """
import json, resource, sys
import torch
from secateur.checkpoints import Cut, cut_checkpoint, open_checkpoint

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

source, target = sys.argv[1:]
before = peak()
checkpoint = open_checkpoint(source)
cuts = {t.name: Cut({d: torch.arange(0, size - size // 9) for d, size in enumerate(t.shape)}) for t in checkpoint}
cut_checkpoint(checkpoint, cuts, target)
print(json.dumps([peak() - before, max(t.num_bytes for t in checkpoint)]))
"""


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, dict[int, Tensor]]:
    """A tensor, and positions to keep along some of its dims."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    tensor = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    keep = {}
    for dim in draw(st.sets(st.integers(0, len(shape) - 1))):
        keep[dim] = torch.tensor(sorted(draw(st.sets(st.integers(0, shape[dim] - 1), min_size=1))))
    return tensor, keep


@given(case=cases(), piece=st.sampled_from([1, 16, 1000]))
def test_cut_tensor_is_what_indexing_gives(
    case: tuple[Tensor, dict[int, Tensor]], piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensor, keep = case
    folder = tmp_path_factory.mktemp("cut")
    safetensors.torch.save_file({"x": tensor, "other": torch.arange(5)}, folder / "x.safetensors", {"k": "v"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_PIECE", piece)
        cut_checkpoint(open_checkpoint(folder / "x.safetensors"), {"x": Cut(keep)}, folder / "y.safetensors")
    expected = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
    for dim, positions in keep.items():
        expected = torch.stack([expected.select(dim, int(position)) for position in positions], dim)
    with safetensors.safe_open(folder / "y.safetensors", "pt") as file:
        found = file.get_tensor("x")
        assert found.dtype == tensor.dtype
        assert torch.equal(found.view(expected.dtype), expected)
        assert torch.equal(file.get_tensor("other"), torch.arange(5))
        assert file.metadata() == {"k": "v"}


def test_what_is_added_comes_before_the_cut(tmp_path: Path) -> None:
    bias, added = torch.randn(7).half(), torch.randn(7)
    safetensors.torch.save_file({"bias": bias}, tmp_path / "x.safetensors")
    keep = torch.tensor([0, 2, 6])
    cut_checkpoint(
        open_checkpoint(tmp_path / "x.safetensors"), {"bias": Cut({0: keep}, added)}, tmp_path / "y.safetensors"
    )
    found = safetensors.torch.load_file(tmp_path / "y.safetensors")["bias"]
    assert torch.equal(found, (bias + added.half())[keep])


def test_dtypes_of_all_widths_stay_readable_in_any_order(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.arange(3.0), "c": torch.arange(4).bfloat16()}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    cuts = {name: Cut({0: torch.tensor([1])}) for name in tensors}
    cut_checkpoint(open_checkpoint(tmp_path / "x.safetensors"), cuts, tmp_path / "y.safetensors")
    found = safetensors.torch.load_file(tmp_path / "y.safetensors")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [1], "b": [1.0], "c": [1.0]}


def test_shards_keep_their_names_and_the_index_its_total(sharded: Write, tmp_path: Path) -> None:
    tensors = {name: torch.randn(6, 4) for name in "abc"}
    keep = torch.tensor([1, 4])
    cut_checkpoint(open_checkpoint(sharded(tensors)), {"b": Cut({0: keep})}, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 2 * 96 + 32}
    found = {each.name: each.tensor() for each in open_checkpoint(tmp_path / "out")}
    assert torch.equal(found["b"], tensors["b"][keep])
    assert all(torch.equal(found[name], tensors[name]) for name in "ac")


@pytest.mark.parametrize(
    ("cuts", "why"),
    [
        ({"no": Cut({0: torch.tensor([0])})}, "no tensor 'no'"),
        ({"x": Cut({0: torch.tensor([0, 3])})}, "no positions to keep along dim 0"),
        ({"x": Cut({2: torch.tensor([0])})}, "no positions to keep along dim 2"),
        ({"x": Cut({0: torch.tensor([], dtype=torch.int64)})}, "no positions to keep along dim 0"),
        ({"x": Cut({}, torch.zeros(3))}, "has another shape"),
    ],
)
def test_cut_that_does_not_fit_writes_nothing(cuts: dict[str, Cut], why: str, tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.zeros(3, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(ShapeError, match=why):
        cut_checkpoint(open_checkpoint(tmp_path / "x.safetensors"), cuts, tmp_path / "y.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_is_there_stays_unless_asked(tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.zeros(3, 2)}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    (tmp_path / "y").write_text("mine")
    with pytest.raises(InvalidInputError, match="is there already"):
        cut_checkpoint(checkpoint, {}, tmp_path / "y")
    assert (tmp_path / "y").read_text() == "mine"
    cut_checkpoint(checkpoint, {}, tmp_path / "y", force=True)
    assert (tmp_path / "y").read_bytes() == (tmp_path / "x.safetensors").read_bytes()


def test_checkpoint_can_be_cut_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"x": torch.arange(6.0)}, path)
    cut_checkpoint(open_checkpoint(path), {"x": Cut({0: torch.tensor([5])})}, path, force=True)
    assert safetensors.torch.load_file(path)["x"].tolist() == [5.0]


def test_peak_memory_is_at_most_one_and_a_half_of_the_largest_tensor(sharded: Write, tmp_path: Path) -> None:
    tensors = {f"{k}.weight": torch.randn(1 << 12, 1 << 12) for k in range(3)} | {"wide": torch.randn(2, 1 << 22)}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(sharded(tensors)), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, largest = json.loads(done.stdout)
    assert largest == 64 << 20
    assert peak <= 1.5 * largest
