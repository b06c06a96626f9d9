"""Heads of safetensors files, against the library that defines them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from secateur import InvalidInputError, UnsupportedError
from secateur.checkpoints.headers import DTYPES, encoded, read_header

TENSORS = {
    "b": torch.arange(3, dtype=torch.float64),
    "a": torch.ones(2, 3, dtype=torch.bfloat16),
    "scalar": torch.tensor(True),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file."""
    safetensors.torch.save_file(TENSORS, tmp_path / "x.safetensors", {"format": "pt"})
    return tmp_path / "x.safetensors"


def file_of(path: Path, header: object, data: bytes = b"") -> Path:
    """Write a file with a header of any kind."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_places_are_where_the_bytes_are(path: Path) -> None:
    places, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    assert places.keys() == TENSORS.keys()
    everything = path.read_bytes()
    for name, tensor in TENSORS.items():
        place = places[name]
        assert place.shape == tuple(tensor.shape)
        assert DTYPES[place.dtype] == tensor.dtype
        assert everything[place.start : place.stop] == tensor.flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_those_that_safetensors_means(name: str, tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.zeros(4, dtype=DTYPES[name])}, tmp_path / "x.safetensors")
    assert read_header(tmp_path / "x.safetensors")[0]["x"].dtype == name


def test_written_head_is_read_by_safetensors(tmp_path: Path) -> None:
    head = encoded([("long", "I64", (2,)), ("short", "F16", (3, 1))], {"k": "v"})
    data = np.array([5, 7]).tobytes() + np.array([1, 2, 3], dtype=np.float16).tobytes()
    (tmp_path / "x.safetensors").write_bytes(head + data)
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"k": "v"}
        assert file.get_tensor("long").tolist() == [5, 7]
        assert file.get_tensor("short").tolist() == [[1], [2], [3]]
    assert len(head) % 8 == 0


@pytest.mark.parametrize("left", [3, 8, 40, -1])
def test_truncated_file_is_refused_wherever_it_ends(left: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(InvalidInputError, match=r"is truncated|does not begin with the length"):
        read_header(path)


def test_truncated_file_says_how_much_is_missing(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InvalidInputError, match=f"bytes: {size - 5}    promised: {size}"):
        read_header(path)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (b"no JSON at all", b"", "its header cannot be read"),
        ([1, 2], b"", "its header cannot be read"),
        ({"x": 3}, b"", "its header cannot be read"),
        ({"x": {**ENTRY, "dtype": "F33"}}, b"8 bytes.", "its header cannot be read"),
        ({"x": {**ENTRY, "shape": [3]}}, b"8 bytes.", "8 bytes for F32"),
        ({"x": {**ENTRY, "shape": [-2]}}, b"8 bytes.", "sizes are no counts"),
        ({"x": ENTRY, "y": ENTRY}, b"8 bytes.", "overlap or leave gaps"),
        ({"x": {**ENTRY, "data_offsets": [8, 16]}}, b"8 bytes.8 bytes.", "overlap or leave gaps"),
        ({"x": ENTRY}, b"8 bytes. and more", "9 bytes follow"),
    ],
)
def test_damaged_header_is_refused(header: object, data: bytes, why: str, tmp_path: Path) -> None:
    path = file_of(tmp_path / "x.safetensors", header, data)
    with pytest.raises(InvalidInputError, match=why):
        read_header(path)
    with pytest.raises(safetensors.SafetensorError):  # which agrees
        safetensors.safe_open(path, "np")


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "x.pt")
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        read_header(tmp_path / "x.pt")


def test_a_header_longer_than_programs_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.checkpoints.headers.LONGEST", 64)
    with pytest.raises(UnsupportedError, match=r"cannot hold this much(?s:.*)limit: 64"):
        encoded([("a", "F32", (2, 3))], {"plan": "x" * 40})
