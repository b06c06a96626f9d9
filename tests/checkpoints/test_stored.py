"""Tensors read a few rows at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import UnsupportedError
from secateur.checkpoints import Stored, open_checkpoint, stored
from secateur.checkpoints.headers import Place

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(shape=SHAPES, piece=st.sampled_from([1, 16, 100]), multiple=st.integers(1, 3))
def test_rows_in_order_are_the_tensor(
    shape: tuple[int, ...], piece: int, multiple: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("stored") / "x.safetensors"
    tensor = torch.randint(0, 1000, shape, dtype=torch.int16)
    safetensors.torch.save_file({"before": torch.zeros(3), "x": tensor}, path)
    (found,) = (each for each in open_checkpoint(path) if each.name == "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_PIECE", piece)
        rows = [(first, rows.clone()) for first, rows in found.rows(multiple=multiple)]
        raw = b"".join(part.numpy().tobytes() for part in found.raw())
        assert torch.equal(found.tensor(), tensor)
    assert raw == tensor.numpy().tobytes()
    assert all(first % multiple == 0 for first, _ in rows)
    assert [first for first, _ in rows] == [sum(len(part) for _, part in rows[:k]) for k in range(len(rows))]
    if tensor.numel():
        assert torch.equal(torch.cat([part for _, part in rows]), tensor if shape else tensor.view(1))


def test_pieces_are_a_part_of_a_large_tensor(tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.zeros(100, 10)}, tmp_path / "x.safetensors")
    (found,) = open_checkpoint(tmp_path / "x.safetensors")
    assert max(len(rows) for _, rows in found.rows()) <= 25


def test_dtype_that_torch_does_not_know_is_refused_entry_by_entry(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x12\x34")
    found = Stored("x", tmp_path / "x", Place("F4", (4,), 0, 2))
    assert [part.tolist() for part in found.raw()] == [[0x12, 0x34]]
    with pytest.raises(UnsupportedError, match="entry by entry"):
        list(found.rows())
