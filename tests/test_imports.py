"""Imports point one way, from a part of the package to the parts below it; and only what is needed is imported."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PACKAGE = Path(__file__).parents[1] / "src" / "secateur"

LAYERS = (
    {"surgery", "patterns", "scores", "allocation", "schedules", "graph"},
    {"masks", "checkpoints"},
    {"dst", "shrink", "tickets", "interchange", "optim"},
    {"doctor", "runtime", "export", "report"},
    {"secateur"},  # the package itself, which gathers the public names of all parts but the rim
    {"integrations", "cli"},
    {"__main__"},
)
RANK = {area: rank for rank, areas in enumerate(LAYERS) for area in areas}


def area(module: str) -> str:
    """The part of the package that a dotted module belongs to; ``"secateur"`` for the package itself."""
    return f"{module}.secateur".split(".")[1]


def is_private(part: str) -> bool:
    """Whether a part is one of the `_*` files, which everything may import and which import only each other."""
    return part.startswith("_") and part not in RANK


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(["secateur", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imported(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted module of secateur) for each import, also those in functions and for type checkers only."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parent, *([node.module] if node.module else [])])
            # `from secateur import masks` imports the part, `from secateur import prune_` the package itself.
            parts = [alias.name for alias in node.names if alias.name in RANK or is_private(alias.name)]
            whole = [source] if len(parts) < len(node.names) else []
            targets = [f"{source}.{part}" for part in parts] + whole if source == "secateur" else [source]
        else:
            continue
        yield from ((node.lineno, target) for target in targets if target.split(".")[0] == "secateur")


def is_upward(importer: str, target: str) -> bool:
    """Whether part `importer` may not know part `target`."""
    if importer == target or is_private(target):
        return False
    return is_private(importer) or RANK[target] >= RANK[importer]


def upward_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Describe every import in `source`, the text of `module`, that points up or sideways."""
    return [
        f"{module}, line {line}: {area(module)} may not import {target}"
        for line, target in imported(ast.parse(source), module, is_package=is_package)
        if is_upward(area(module), area(target))
    ]


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert upward_imports(text, module_of(path), is_package=path.name == "__init__.py") == []


def test_imports_know_every_part_of_the_package() -> None:
    parts = {area(module_of(path)) for path in SOURCES}
    assert {part for part in parts if not is_private(part)} <= RANK.keys()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("secateur.masks.attach", "from secateur.doctor import diagnose"),
        ("secateur.masks.attach", "import secateur.doctor.findings as findings"),
        ("secateur.masks.attach", "from secateur import doctor"),
        ("secateur.masks.attach", "from secateur import prune_"),
        ("secateur.masks.attach", "import secateur"),
        ("secateur.masks.attach", "from ..doctor import diagnose"),
        ("secateur.masks.attach", "from .. import doctor"),
        ("secateur.masks.attach", "def late():\n    from secateur.doctor import diagnose"),
        ("secateur.masks.attach", "if TYPE_CHECKING:\n    from secateur.doctor import Finding"),
        ("secateur.masks.attach", "from secateur import _names, doctor"),
        ("secateur.scores.snip", "from secateur.patterns import NM"),
        ("secateur.shrink.plan", "import secateur.dst"),
        ("secateur.doctor.drift", "from secateur.report import table"),
        ("secateur._names", "from secateur.surgery import resize_"),
        ("secateur", "from secateur.cli import main"),
        ("secateur.doctor.drift", "import secateur.__main__"),
    ],
)
def test_upward_import_is_found(module: str, text: str) -> None:
    line = text.count("\n") + 1
    is_package = module == "secateur"
    assert [found.split(":")[0] for found in upward_imports(text, module, is_package=is_package)] == [
        f"{module}, line {line}"
    ]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("secateur.masks.attach", "from secateur.surgery import resize_"),
        ("secateur.masks.attach", "from secateur.masks.packed import pack"),
        ("secateur.masks.attach", "from .packed import pack"),
        ("secateur.masks.attach", "from secateur import _names, scores"),
        ("secateur.masks.attach", "import torch.nn as nn"),
        ("secateur._names", "from secateur._errors import InvalidInputError"),
        ("secateur.cli.demo", "from secateur import prune_"),
        ("secateur.integrations.lightning", "from secateur.report import table"),
        ("secateur", "from secateur.masks import prune_"),
        ("secateur", "from ._errors import SecateurError"),
    ],
)
def test_downward_import_is_allowed(module: str, text: str) -> None:
    assert upward_imports(text, module, is_package=module == "secateur") == []


IMPORT_NAMES = {"scikit-learn": "sklearn", "pytest-xdist": "xdist"}
"""Where it is not the name of the distribution with ``_`` for ``-``."""

HEAVY = {
    *("networkx", "rich", "scipy", "sympy", "triton"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.onnx"),
}
"""What is always there, takes long to import, and is needed by programs or by some functions only."""

NEEDED = {
    "secateur.cli": ["rich"],
    "secateur.integrations.accelerate": ["accelerate"],
    "secateur.integrations.lightning": ["lightning"],
    "secateur.integrations.transformers": ["transformers"],
}
"""Modules that are of use only together with what they import."""

WATCH = """
import importlib, importlib.abc, importlib.machinery, json, sys, types
import torch  # what it imports by itself costs nothing more

class StandIn(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

class Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if names := {one for one in unwanted if f"{name}.".startswith(f"{one}.")}:
            found.setdefault(importer(sys._getframe()), set()).update(names)
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return StandIn(spec.name)
    def exec_module(self, module):
        pass

def importer(frame):  # the module of secateur that is being run
    while frame.f_code.co_name != "<module>" or not f"{frame.f_globals['__name__']}.".startswith("secateur."):
        frame = frame.f_back
    return frame.f_globals["__name__"]

modules, unwanted = map(json.loads, sys.argv[1:])
sys.meta_path.insert(0, Watch())
found = {}
for module in modules:
    importlib.import_module(module)
    for name in [name for name, one in sys.modules.items() if isinstance(one, StandIn)]:
        del sys.modules[name]
print(json.dumps({module: sorted(names) for module, names in found.items()}))
"""
"""Imports modules of secateur, and prints which of them ask for which of some others, that are not really imported."""


def optional() -> Iterator[str]:
    """What the extras of secateur bring."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for lines in project["optional-dependencies"].values():
        names = {Requirement(line).name for line in lines} - {project["name"]}
        yield from (IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names)


def needed(module: str) -> list[str]:
    """What a module, or the package that it belongs to, is listed with."""
    return next((names for prefix, names in NEEDED.items() if f"{module}.".startswith(f"{prefix}.")), [])


def test_no_module_imports_what_is_optional_or_slow_before_it_is_used() -> None:
    modules = [module_of(path) for path in SOURCES if path.name != "__main__.py"]
    unwanted = sorted({*optional(), *HEAVY})
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(modules), json.dumps(unwanted)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {module: names for module, names in found.items() if names != needed(module)} == {}
    assert {name for names in NEEDED.values() for name in names} == {name for names in found.values() for name in names}
