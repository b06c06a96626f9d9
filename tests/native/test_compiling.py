from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from secateur._native import compiling
from secateur._native.compiling import CompileError, UnavailableError, compile_library, compiler, sanitizer_runtimes
from secateur._native.loading import INTERFACE, LEVELS

SMALL = """
#include "secateur.h"
EXPORT int NAME(twice)(int number) { return 2 * number; }
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources that are compiled at once: which levels there are, and one function."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("level.c", "secateur.h"):
        (folder / name).write_bytes((compiling.SOURCES / name).read_bytes())
    (folder / "small.c").write_text(SMALL)
    monkeypatch.setattr(compiling, "SOURCES", folder)
    return folder


def test_library_has_every_function_for_every_level_that_the_compiler_knows(sources: Path, tmp_path: Path) -> None:
    made = compile_library(tmp_path / "new" / "kernels.so")
    assert made == tmp_path / "new" / "kernels.so"
    library = ctypes.CDLL(str(made))
    assert library.secateur_interface() == INTERFACE
    levels = LEVELS[: library.secateur_level() + 1]
    assert [library[f"secateur_twice_{level}"](21) for level in levels] == [42] * len(levels)
    assert [path.name for path in made.parent.iterdir()] == ["kernels.so"], "nothing else is left"


def test_library_takes_the_place_of_the_one_before(sources: Path, tmp_path: Path) -> None:
    made = tmp_path / "kernels.so"
    made.write_text("an old one, which a process may have mapped")
    with made.open() as held:
        compile_library(made)
        assert held.read().startswith("an old one")
    assert ctypes.CDLL(str(made)).secateur_interface() == INTERFACE


def test_sanitized_library_is_made_where_it_can_be_loaded(sources: Path, tmp_path: Path) -> None:
    try:
        runtimes = sanitizer_runtimes()
    except UnavailableError:
        with pytest.raises(UnavailableError, match="has no sanitizers"):
            compile_library(tmp_path / "kernels.so", sanitize=True)
        return
    made = compile_library(tmp_path / "kernels.so", sanitize=True)
    assert b"__asan_init" in made.read_bytes()
    assert [path.name.split(".so")[0] for path in runtimes] == ["libasan", "libstdc++"]


def test_sources_that_are_wrong_leave_the_library_as_it_was(sources: Path, tmp_path: Path) -> None:
    (sources / "small.c").write_text("int broken(void) { return misspelt; }")
    made = tmp_path / "kernels.so"
    made.write_text("as it was")
    with pytest.raises(CompileError, match=r"small\.c[\s\S]*misspelt"):
        compile_library(made)
    assert made.read_text() == "as it was"


def test_compiler_that_fails_is_quoted(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", f"{failing} -pipe")
    assert compiler() == [str(failing), "-pipe"]
    with pytest.raises(CompileError, match=r"failing -pipe[\s\S]*no space left"):
        compile_library(tmp_path / "kernels.so")
    with pytest.raises(UnavailableError, match="has no sanitizers"):
        compile_library(tmp_path / "kernels.so", sanitize=True)
    assert not (tmp_path / "kernels.so").exists()


def test_variable_that_names_no_command_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiler() is None or compiler() != ["no-such-compiler"]


def test_no_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler() is None
    with pytest.raises(UnavailableError, match="no C compiler was found"):
        compile_library(tmp_path / "kernels.so")


def test_other_processors_get_portable_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.platform, "machine", lambda: "aarch64")
    assert compiling._levels() == ("portable",)


@pytest.mark.parametrize(("command", "status"), [("false", 1), ("", 3)])
def test_command_line_says_why_there_is_no_library(tmp_path: Path, command: str, status: int) -> None:
    environment = {"CC": command, "PATH": "/usr/bin:/bin" if command else str(tmp_path)}
    done = subprocess.run(
        [sys.executable, compiling.__file__, str(tmp_path / "kernels.so")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status
    assert done.stderr.startswith("everything runs in pure torch: ")
    assert not (tmp_path / "kernels.so").exists()
