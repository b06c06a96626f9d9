"""The hook that compiles the kernels when the package is built, without a build around it."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from secateur._native import compiling

ROOT = Path(__file__).parents[2]
INTERFACE = "hatchling.builders.hooks.plugin.interface"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with the least of sources, and a library that an earlier build has left."""
    package = tmp_path / "src" / "secateur" / "_native"
    (package / "sources").mkdir(parents=True)
    shutil.copy(compiling.__file__, package)
    for name in ("level.c", "secateur.h"):
        shutil.copy(compiling.SOURCES / name, package / "sources")
    (package / "kernels.so").write_text("old")
    return tmp_path


def build(tree: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[str]]:
    """Run the hook; what it says about the wheel, and its warnings."""
    stub = ModuleType(INTERFACE)
    stub.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, INTERFACE, stub)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook, data, warnings = module.KernelsHook(), {"artifacts": [], "pure_python": True}, []
    hook.root, hook.app = str(tree), SimpleNamespace(display_warning=warnings.append)
    hook.initialize("standard", data)
    return data, warnings


def test_wheel_has_the_library_and_fits_this_platform(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, warnings = build(tree, monkeypatch)
    (artifact,) = data["artifacts"]
    assert (tree / artifact).read_bytes() != b"old"
    assert not data["pure_python"]
    assert data["tag"].startswith("py3-none-")
    assert data["tag"] != "py3-none-any"
    assert warnings == []


def compile_with(script: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the compiler called by a shell script that does something else before."""
    script.write_text(f'#!/bin/sh\n{line}\nexec {shlex.join(compiling.compiler())} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


def test_wheel_runs_on_every_processor_of_its_kind(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tree / "src" / "secateur" / "_native" / "sources" / "kernel.c"
    source.write_text('#include "secateur.h"\nEXPORT int NAME(one)(void) { return 1; }\n')
    compile_with(tree / "compiler", f'echo "$@" >> {tree}/calls', monkeypatch)
    _, warnings = build(tree, monkeypatch)
    assert warnings == []
    calls = [line.split() for line in (tree / "calls").read_text().splitlines()]
    portable = [words for words in calls if "-DLEVEL=portable" in words]
    assert {Path(words[words.index("-c") + 1]).name for words in portable} == {"level.c", "kernel.c"}
    assert not [word for words in portable for word in words if word.startswith("-m")]
    assert not [word for words in calls for word in words if "native" in word and word.startswith("-m")]


def test_library_of_before_stays_until_the_new_one_is_made(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tree / "src" / "secateur" / "_native" / "kernels.so"
    compile_with(tree / "compiler", f"test -e {library} || exit 1", monkeypatch)
    data, _ = build(tree, monkeypatch)
    assert data["artifacts"]
    assert library.read_bytes() != b"old"


@pytest.mark.parametrize("command", ["false", "'' -O2"])
def test_wheel_is_pure_when_nothing_compiles_and_one_line_says_so(
    tree: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CC", command)
    if command != "false":
        monkeypatch.setenv("PATH", str(tree))
    data, (warning,) = build(tree, monkeypatch)
    assert data == {"artifacts": [], "pure_python": True}
    assert not (tree / "src" / "secateur" / "_native" / "kernels.so").exists()
    assert warning.startswith("secateur: kernels not compiled, everything will run in pure torch: ")
    assert "\n" not in warning
