"""The file of an attachment beside the weights of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from secateur import InvalidInputError, UnsupportedError
from secateur.integrations.files import has_state, read_state, write_state
from tests.integrations.trainings import assert_same

STATE: dict[str, Any] = {"step": 3, "parts": [None, {"pair": (1, 2.5), 3: "word"}], "bits": torch.arange(5)}


def test_state_comes_back(tmp_path: Path) -> None:
    assert not has_state(tmp_path)
    write_state(tmp_path, STATE)
    write_state(tmp_path, {"other": 1}, 2)
    assert has_state(tmp_path)
    assert_same(read_state(tmp_path), STATE)
    assert read_state(tmp_path, 2) == {"other": 1}


def test_state_is_written_anew_in_whole(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 1})
    write_state(tmp_path, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["pruning.safetensors"]
    assert read_state(tmp_path)["step"] == 3


def test_what_no_file_can_hold_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    with pytest.raises(UnsupportedError, match="numbers, words and tensors only"):
        write_state(tmp_path, {"function": print})
    assert_same(read_state(tmp_path), STATE)


def test_folder_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"says nothing of pruning: there is no pruning_1\.safetensors"):
        read_state(tmp_path, 1)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pruning.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidInputError, match="not a safetensors file"):
        read_state(tmp_path)
    safetensors.torch.save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur\.Pruning\.1"):
        read_state(tmp_path)


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pruning.safetensors"
    write_state(tmp_path, STATE)
    with safetensors.safe_open(path, "pt") as file:
        header = file.metadata()
    safetensors.torch.save_file({"other": torch.zeros(1)}, path, header)
    with pytest.raises(InvalidInputError, match="damaged"):
        read_state(tmp_path)
