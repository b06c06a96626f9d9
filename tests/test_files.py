"""Files and folders that are there in whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from secateur import InvalidInputError
from secateur._files import written_file, written_folder

HALF = """
import os, signal, sys
from secateur._files import {kind}
with {kind}(sys.argv[1], force=True) as place:
    path = place / "weights" if place.is_dir() else place
    path.write_text("half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_file_is_at_its_place_when_the_block_has_ended(tmp_path: Path) -> None:
    target = tmp_path / "weights"
    with written_file(target) as beside:
        beside.write_text("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"
    assert list(tmp_path.iterdir()) == [target]


def test_file_stays_as_it_was_when_the_block_raises(tmp_path: Path) -> None:
    target = tmp_path / "weights"
    target.write_text("old")

    def write() -> None:
        with written_file(target) as beside:
            beside.write_text("half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["written_file", "written_folder"])
def test_killed_process_leaves_what_was_there(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if kind == "written_folder":
        target.mkdir()
        (target / "weights").write_text("old")
    else:
        target.write_text("old")
    done = subprocess.run([sys.executable, "-c", HALF.format(kind=kind), str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (target / "weights" if target.is_dir() else target).read_text() == "old"


def test_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with written_folder(target) as beside:
        (beside / "a").write_text("1")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [target]


def test_folder_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    with written_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_folder_that_is_there_keeps_its_other_files(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").write_text("1")
    (target / "weights").write_text("old")
    with written_folder(target, force=True) as beside:
        (beside / "weights").write_text("new")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"mine": "1", "weights": "new"}


@pytest.mark.parametrize("write", [written_file, written_folder])
def test_what_is_there_is_refused_unasked(write: object, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInputError, match="is there already"), write(tmp_path / "out", force=False):  # type: ignore[operator]
        pytest.fail("the block must not run")


@pytest.mark.parametrize("write", [written_file, written_folder])
def test_place_without_a_folder_is_refused(write: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such folder"), write(tmp_path / "no" / "out"):  # type: ignore[operator]
        pytest.fail("the block must not run")
    assert os.listdir(tmp_path) == []


def test_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInputError, match="is there already"), written_file(tmp_path / "out", force=True):
        pytest.fail("the block must not run")


def test_devices_and_pipes_are_no_places_for_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInputError, match="a device, a pipe or a socket"), written_file(pipe):
        pass
    assert pipe.is_fifo()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_can_be_read_by_whom_the_umask_allows(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with written_file(tmp_path / "file") as beside:
            os.close(os.open(beside, os.O_CREAT | os.O_WRONLY, 0o600))
        with written_folder(tmp_path / "folder") as folder:
            os.close(os.open(folder / "file", os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "file", tmp_path / "folder" / "file")}
    assert modes == {0o666 & ~mask}


def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o640)
    with written_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
