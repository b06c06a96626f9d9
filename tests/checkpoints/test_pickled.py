"""Files of torch.save, of which tensors and plain values are read and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from secateur import InvalidInputError
from secateur.checkpoints.pickled import is_pickled, tensors_in

RAN: list[str] = []


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> object:
        return RAN.append, ("it ran",)


@pytest.mark.parametrize("new", [True, False])
def test_tensors_of_nested_values_have_dotted_names(new: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    value = {"model": {"a.weight": torch.ones(2, 3)}, "epoch": 3, "parts": [torch.zeros(1), {"b": torch.tensor(2)}]}
    torch.save(value, path, _use_new_zipfile_serialization=new)
    assert is_pickled(path)
    found = {each.name: each for each in tensors_in(path)}
    assert {name: each.shape for name, each in found.items()} == {
        "model.a.weight": (2, 3),
        "parts.0": (1,),
        "parts.1.b": (),
    }
    assert found["model.a.weight"].dtype == "F32"
    assert found["parts.1.b"].num_bytes == 8


@pytest.mark.parametrize("length", [0x80, 0x280])
def test_safetensors_whose_length_looks_like_a_pickle_are_none(length: int, tmp_path: Path) -> None:
    for padding in range(length):
        safetensors.torch.save_file({"w": torch.zeros(1)}, tmp_path / "x", {"p": "x" * padding})
        if (tmp_path / "x").read_bytes()[:8] == length.to_bytes(8, "little"):
            break
    assert (tmp_path / "x").read_bytes().startswith(b"\x80")
    assert not is_pickled(tmp_path / "x")


def test_rows_are_the_tensor(tmp_path: Path) -> None:
    weight = torch.randn(100, 50000)
    torch.save({"w": weight, "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}, tmp_path / "x.pt")
    large, scalar, empty = tensors_in(tmp_path / "x.pt")
    pieces = list(large.rows(multiple=32))
    assert [first for first, _ in pieces] == [0, 32, 64, 96]
    assert torch.equal(torch.cat([rows for _, rows in pieces]), weight)
    assert [(first, rows.tolist()) for first, rows in scalar.rows()] == [(0, [3.0])]
    assert list(empty.rows()) == []


@pytest.mark.parametrize("value", [nn.Linear(2, 2), {"w": torch.ones(1), "trap": Trap()}])
def test_objects_are_not_unpickled(value: object, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(InvalidInputError, match="is not unpickled"):
        tensors_in(tmp_path / "x.pt")
    assert RAN == []


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1000)}, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:2000])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        tensors_in(tmp_path / "x.pt")


def test_sparse_tensors_cannot_be_looked_at(tmp_path: Path) -> None:
    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "x.pt")
    (found,) = tensors_in(tmp_path / "x.pt")
    assert not found.has_entries
