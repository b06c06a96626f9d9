"""Checkpoints of one file and of several."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from secateur import InvalidInputError
from secateur.checkpoints import open_checkpoint
from tests.checkpoints.conftest import Write

TENSORS = {name: torch.randn(3, 2) for name in "abcde"}


@pytest.mark.parametrize("way", ["folder", "index"])
def test_shards_are_one_checkpoint(way: str, sharded: Write) -> None:
    folder = sharded(TENSORS)
    found = open_checkpoint(folder if way == "folder" else folder / "model.safetensors.index.json")
    assert {each.name for each in found} == set(TENSORS)
    assert all(torch.equal(each.tensor(), TENSORS[each.name]) for each in found)
    assert found.num_bytes == 5 * 24
    assert [shard.metadata for shard in found.shards] == [{"format": "pt"}] * 2


def test_folder_means_its_model_beside_other_files(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "model.safetensors")
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "plan.safetensors")
    assert {each.name for each in open_checkpoint(tmp_path)} == set(TENSORS)


@pytest.mark.parametrize("names", [[], ["a.safetensors", "b.safetensors"]])
def test_folder_that_says_nothing_is_refused(names: list[str], tmp_path: Path) -> None:
    for name in names:
        safetensors.torch.save_file(TENSORS, tmp_path / name)
    with pytest.raises(InvalidInputError, match=", ".join(names) or "no safetensors files"):
        open_checkpoint(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no file"):
        open_checkpoint(tmp_path / "x.safetensors")


def test_missing_shard_is_named(sharded: Write) -> None:
    folder = sharded(TENSORS)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InvalidInputError, match="missing: model-00002-of-00002"):
        open_checkpoint(folder)


@pytest.mark.parametrize("edit", ["other", "less", "more"])
def test_index_of_other_files_is_refused(edit: str, sharded: Write) -> None:
    folder = sharded(TENSORS)
    path = folder / "model.safetensors.index.json"
    listed = json.loads(path.read_text())
    files = listed["weight_map"]
    if edit == "other":
        files["a"] = files["b"]
    elif edit == "less":
        del files["a"]
    else:
        files["strange"] = files["a"]
    path.write_text(json.dumps(listed))
    with pytest.raises(InvalidInputError, match=f"tensors: {'strange' if edit == 'more' else 'a'}"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 3}}']
)
def test_file_that_is_no_index_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InvalidInputError, match="no index of a sharded checkpoint"):
        open_checkpoint(tmp_path)


# ---- pickles


def converted(error: InvalidInputError) -> None:
    """Run the line that an error shows, in the folder that this process is in."""
    _, _, command = error.fix.partition(": python ")
    subprocess.run([sys.executable, *shlex.split(command)], check=True)


@pytest.mark.parametrize("files", [1, 2])
def test_folder_of_pickles_is_converted_by_the_line_that_the_error_shows(files: int, tmp_path: Path) -> None:
    names = ["pytorch_model.bin"] if files == 1 else [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    for number, name in enumerate(names):
        part = {key: TENSORS[key] for key in list(TENSORS)[number::files]}
        torch.save({**part, "tied": part["a"]} if "a" in part else part, tmp_path / name)
    torch.save({"lr": 0.1}, tmp_path / "training_args.bin")
    with pytest.raises(InvalidInputError, match=f"in pickles only(?s:.*)found: {', '.join(names)}") as caught:
        open_checkpoint(tmp_path)
    converted(caught.value)
    found = {each.name: each.tensor() for each in open_checkpoint(tmp_path)}
    assert found.keys() == {*TENSORS, "tied"}
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert torch.equal(found["tied"], TENSORS["a"])


@pytest.mark.parametrize(
    ("name", "target"),
    [("my model.pt", "my model.safetensors"), ("wrong.safetensors", "wrong.converted.safetensors")],
)
def test_file_of_pickles_is_converted_by_the_line_that_the_error_shows(name: str, target: str, tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / name)
    with pytest.raises(InvalidInputError, match=r"is not a safetensors file but one of torch\.save") as caught:
        open_checkpoint(tmp_path / name)
    converted(caught.value)
    assert {each.name for each in open_checkpoint(tmp_path / target)} == set(TENSORS)


@pytest.mark.parametrize("where", ["folder", "file"])
def test_the_line_works_where_the_command_was_given(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bin").mkdir()
    torch.save(TENSORS, "bin/pytorch_model.bin")
    with pytest.raises(InvalidInputError, match=r"torch\.save|pickles only") as caught:
        open_checkpoint("bin" if where == "folder" else "bin/pytorch_model.bin")
    converted(caught.value)
    assert {each.name for each in open_checkpoint("bin")} == set(TENSORS)


NESTED: dict[str, tuple[Any, str]] = {
    "one": ({"model": TENSORS, "epoch": 3}, ""),
    "deep": ({"run": {"model": TENSORS}, "args": {"lr": 0.1}}, ""),
    "with an average": ({"model": TENSORS, "ema": TENSORS}, "also there: ['ema']"),
    "strided": ({"a": torch.ones(3, 2).T, "epoch": 3}, ""),
    "with an optimizer": ({"model": TENSORS, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, ""),
}


@pytest.mark.parametrize("name", NESTED)
def test_weights_among_other_things_are_found_by_the_line(name: str, tmp_path: Path) -> None:
    value, told = NESTED[name]
    torch.save(value, tmp_path / "model.ckpt")
    with pytest.raises(InvalidInputError, match=re.escape(told or "model.ckpt")) as caught:
        open_checkpoint(tmp_path / "model.ckpt")
    converted(caught.value)
    found = {each.name for each in open_checkpoint(tmp_path / "model.safetensors")}
    assert found == ({"a"} if name == "strided" else set(TENSORS))


@pytest.mark.parametrize(("value", "told"), [({"epoch": 3}, "no dict of tensors"), (Path("x"), "more than tensors")])
def test_where_no_line_would_work_it_is_said_what_to_do(value: object, told: str, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "model.pt")
    with pytest.raises(InvalidInputError, match=rf"{told}(?s:.*)torch\.save\(model\.state_dict\(\), path\)"):
        open_checkpoint(tmp_path / "model.pt")


def test_pickles_beside_safetensors_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"code")
    safetensors.torch.save_file(TENSORS, tmp_path / "model.safetensors")
    assert {each.name for each in open_checkpoint(tmp_path)} == set(TENSORS)
