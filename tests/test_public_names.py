"""Every public name has a docstring, a place in the docs, and exists where the pages say it does."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import secateur
from tests.documents import ROOT

API = ROOT / "docs" / "api.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_FOR_IMPORT = {"cli"}

IN_TABLES = "allocation|dst|interchange|patterns|schedules|scores|shrink|tickets"
"""Modules that tables name without their package."""

PARTS = [
    f"secateur.{part.name}"
    for part in pkgutil.iter_modules(secateur.__path__)
    if not part.name.startswith("_") and part.name not in NOT_FOR_IMPORT
]


def sources(module: ModuleType) -> Iterator[str]:
    """Yield the texts of the files of a module or package."""
    path = Path(inspect.getfile(module))
    files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    return (file.read_text(encoding="utf-8") for file in files)


def described_constants(texts: Iterable[str]) -> Iterator[str]:
    """Yield the names of module-level assignments that a string, their docstring, follows."""
    for text in texts:
        for pair in pairwise(ast.parse(text).body):
            match pair:
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)), ast.Expr(
                    ast.Constant(str())
                ):
                    yield name


def is_documented(name: str, value: object, constants: set[str]) -> bool:
    """Whether a value carries a docstring of its own: not its parent's, its type's, or one made by `dataclass`."""
    if inspect.isclass(value):
        own = vars(value).get("__doc__") or ""
        return bool(own) and not own.startswith(f"{name}(")
    if inspect.isroutine(value) or inspect.ismodule(value):
        return bool(value.__doc__)
    return name in constants


def undocumented(module: ModuleType, texts: Iterable[str]) -> list[str]:
    """The names in ``module.__all__`` that have no docstring; `texts` are the module's source files."""
    constants = set(described_constants(texts))
    return [name for name in module.__all__ if not is_documented(name, getattr(module, name), constants)]


def listed_modules(page: str) -> list[str]:
    """The modules whose public names a page of the docs lists, by the directive that docs/conf.py defines."""
    return re.findall(r"^\.\. public-names:: ([\w.]+)$", page, re.MULTILINE)


def is_there(dotted: str) -> bool:
    """Whether ``secateur.…`` can be reached by importing modules and then reading attributes."""
    found: object = secateur
    for count, part in enumerate(dotted.split(".")[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(dotted.split(".")[:count]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def missing_names(page: str) -> list[str]:
    """The names of secateur in a page's text and code that do not exist."""
    dotted = re.findall(r"(?<![\w./-])secateur(?:\.[A-Za-z_]\w*)+", page)
    froms = re.findall(r"^from (secateur[\w.]*) import ([\w, ]+)$", page, re.MULTILINE)
    dotted += [f"{module}.{name.split()[0]}" for module, names in froms for name in names.split(",")]
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    dotted += [f"secateur.{name}" for name in re.findall(rf"(?<![\w./-])(?:{IN_TABLES})\.[A-Za-z_]\w*", rows)]
    return sorted({name for name in dotted if not is_there(name)})


def test_top_level_has_at_most_thirty_names() -> None:
    assert 0 < len(secateur.__all__) <= 33


@pytest.mark.parametrize("name", ["secateur", *PARTS])
def test_public_names_have_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert undocumented(module, sources(module)) == []


def test_docs_list_every_public_part_once() -> None:
    assert sorted(listed_modules(API.read_text(encoding="utf-8"))) == sorted(["secateur", *PARTS])


def test_docs_list_the_class_of_every_trainer() -> None:
    files = (Path(secateur.__file__).parent / "integrations").glob("*.py")
    adapters = [file.stem for file in files if '__all__ = ["Pruning"]' in file.read_text(encoding="utf-8")]
    listed = re.findall(r"^\.\. autoclass:: secateur\.integrations\.(\w+)\.Pruning$", API.read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(adapters) != []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_only_what_exists(page: Path) -> None:
    assert missing_names(page.read_text(encoding="utf-8")) == []


def test_undocumented_names_are_found() -> None:
    text = '''
from dataclasses import dataclass
from pathlib import Path
__all__ = ["with_doc", "without", "Inherits", "Value", "LIMIT", "DESCRIBED"]
def with_doc(): """Has one."""
def without(): ...
class Inherits(Path): ...
@dataclass
class Value:
    x: int
LIMIT = 3
DESCRIBED: int = 3
"""Says what it is."""
'''
    module = ModuleType("planted")
    exec(compile(text, "planted.py", "exec", dont_inherit=True), vars(module))
    assert undocumented(module, [text]) == ["without", "Inherits", "Value", "LIMIT"]


def test_listed_modules_are_those_of_the_directive() -> None:
    page = "```{eval-rst}\n.. public-names:: secateur.scores\n```\nand `secateur.masks`\n"
    assert listed_modules(page) == ["secateur.scores"]


def test_missing_names_are_found() -> None:
    page = """
`secateur.no_such_verb_` and `secateur._errors.SecateurError`, see docs/secateur.html and `make demo`.

| there | here |
| --- | --- |
| `lamp` | `scores.lamp`, `shrink.no_such_score`, and of torch `torch.optim.scores.x` |

from secateur import _names, nothing
from secateur._errors import ShapeError, NoError as Other
"""
    assert missing_names(page) == [
        "secateur._errors.NoError",
        "secateur.no_such_verb_",
        "secateur.nothing",
        "secateur.shrink.no_such_score",
    ]
