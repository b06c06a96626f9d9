from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import secateur._native as native
from secateur._native import compiling, loading
from secateur._native.loading import INTERFACE, LEVELS
from tests.native.products import MACHINE_LEVELS

Load = Callable[..., str]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """A function that loads as a new process would, with variables of the environment, and returns the status."""

    def loading_anew(**variables: str) -> str:
        for name in ("SECATEUR_NATIVE", "SECATEUR_LEVEL"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        loading._load.cache_clear()
        loading.library.cache_clear()
        return native.status()

    yield loading_anew
    monkeypatch.undo()
    loading._load.cache_clear()
    loading.library.cache_clear()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of the right interface without any kernel."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("level.c", "secateur.h"):
        (folder / name).write_bytes((compiling.SOURCES / name).read_bytes())
    monkeypatch.setattr(compiling, "SOURCES", folder)
    return compiling.compile_library(tmp_path / "kernels.so")


def test_library_of_the_package_is_loaded_for_the_best_level(load: Load) -> None:
    status = load()
    library = native.library()
    assert library is not None
    assert library.path == compiling.LIBRARY
    assert library.level == LEVELS[library.handle.secateur_level()]
    assert status in (f"native kernels: {library.level}, OpenMP", f"native kernels: {library.level}, one thread")
    assert native.library() is library


def test_library_is_switched_off(load: Load) -> None:
    assert (
        load(SECATEUR_NATIVE="0")
        == "native kernels: none, switched off by SECATEUR_NATIVE=0; everything runs in pure torch"
    )
    assert native.library() is None


def test_library_of_another_place_is_loaded(load: Load, built: Path) -> None:
    load(SECATEUR_NATIVE=str(built))
    assert native.library().path == built


@pytest.mark.parametrize("level", MACHINE_LEVELS)
def test_level_is_no_higher_than_asked_for(load: Load, level: str) -> None:
    assert load(SECATEUR_LEVEL=level).startswith(f"native kernels: {level}, ")
    library = native.library()
    assert library.level == level
    assert library.function("count_bits", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64)(None, 0) == 0


def test_level_is_no_higher_than_the_machine_has(load: Load, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_levels", lambda: ("portable",))
    portable = compiling.compile_library(built)
    assert load(SECATEUR_NATIVE=str(portable), SECATEUR_LEVEL="avx512").startswith("native kernels: portable")


def test_level_that_does_not_exist_is_refused(load: Load) -> None:
    assert "SECATEUR_LEVEL=sse9 is none of portable, avx2, avx512" in load(SECATEUR_LEVEL="sse9")
    assert native.library() is None


def test_library_that_was_not_compiled_is_told(load: Load, tmp_path: Path) -> None:
    assert "kernels.so was not compiled when the package was installed" in load(
        SECATEUR_NATIVE=str(tmp_path / "kernels.so")
    )
    assert native.library() is None


def test_file_that_is_no_library_is_refused(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_text("some text")
    assert "kernels.so does not load here" in load(SECATEUR_NATIVE=str(path))
    assert native.library() is None


def test_empty_file_or_folder_is_refused(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.touch()
    assert "kernels.so does not load here" in load(SECATEUR_NATIVE=str(path))
    assert f"{tmp_path.name} does not load here" in load(SECATEUR_NATIVE=str(tmp_path))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_truncated_library_is_refused(load: Load, built: Path, share: float) -> None:
    whole = built.read_bytes()
    built.write_bytes(whole[: int(share * len(whole))])
    assert "kernels.so does not load here" in load(SECATEUR_NATIVE=str(built))
    assert native.library() is None


def test_library_for_another_processor_is_refused(load: Load, built: Path) -> None:
    binary = bytearray(built.read_bytes())
    assert binary[:4] == b"\x7fELF"
    (machine,) = struct.unpack_from("<H", binary, 18)
    struct.pack_into("<H", binary, 18, 183 if machine != 183 else 62)  # AArch64, or x86-64
    built.write_bytes(binary)
    assert "kernels.so does not load here" in load(SECATEUR_NATIVE=str(built))
    assert native.library() is None


def test_library_of_something_else_is_refused(load: Load, tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    path = tmp_path / "kernels.so"
    compiling._run([*compiling.compiler(), "-shared", "-fPIC", str(source), "-o", str(path)])
    assert "does not load here" in load(SECATEUR_NATIVE=str(path))


def test_library_of_another_version_is_refused(load: Load, built: Path) -> None:
    level = compiling.SOURCES / "level.c"
    level.write_text(level.read_text().replace(f"INTERFACE = {INTERFACE}", f"INTERFACE = {INTERFACE + 6}"))
    other = compiling.compile_library(built.with_name("other.so"))
    status = load(SECATEUR_NATIVE=str(other))
    assert f"belongs to another version of secateur (interface {INTERFACE + 6}, not {INTERFACE})" in status
    assert native.library() is None


def test_library_is_looked_for_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load()
    monkeypatch.setenv("SECATEUR_NATIVE", "0")
    assert native.status() == before
