"""Build hook: compile the kernels into the package. Without a compiler the package is built all the same."""

from __future__ import annotations

import importlib.util
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    """Compiles ``src/secateur/_native/sources`` for wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what was compiled among the files of the wheel, which then fits this platform only."""
        compiling = _compiling(Path(self.root))
        try:
            compiling.compile_library()
        except compiling.CompileError as error:
            compiling.LIBRARY.unlink(missing_ok=True)  # what an earlier build has left is of other sources
            why = textwrap.shorten(str(error), 300)
            self.app.display_warning(f"secateur: kernels not compiled, everything will run in pure torch: {why}")
            return
        build_data["artifacts"].append("src/secateur/_native/kernels.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiling(root: Path) -> Any:
    """The module that compiles, without importing the package (which needs torch)."""
    path = root / "src" / "secateur" / "_native" / "compiling.py"
    spec = importlib.util.spec_from_file_location("compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
