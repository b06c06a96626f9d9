"""The hook that compiles the kernels when the package is built, without hatchling, which only a build has."""

from __future__ import annotations

import importlib.util
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
