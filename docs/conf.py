"""How the documentation is built: Sphinx, its pages in Markdown, the reference from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.metadata import version as version_of
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger

import secateur

project = "secateur"
author = "The secateur developers"
project_copyright = "2026, The secateur developers"
version = release = version_of("secateur")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"secateur {release}"
default_role = "literal"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Changes", "Keeps"]

ADAPTERS = ("lightning", "transformers", "accelerate")
"""The public modules of ``secateur.integrations``, each imported by its own name."""


def constant_docs(module: ModuleType, name: str) -> list[str]:
    """Find the docstring below a constant's definition, wherever in the package that is."""
    files = pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}.")
    for source in [module.__name__, *(file.name for file in files)]:
        docs = ModuleAnalyzer.for_module(source).find_attr_docs()
        if ("", name) in docs:
            return docs["", name]
    return []


def description(module: ModuleType, name: str) -> list[str]:
    """Write the reStructuredText that documents one public name."""
    value, dotted = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.ismodule(value):
        return []
    if inspect.isclass(value):
        return [f".. autoclass:: {dotted}", "   :members:", "   :show-inheritance:", ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {dotted}", ""]
    return [
        f".. py:data:: {name}",
        f"   :module: {module.__name__}",
        "",
        *(f"   {line}" for line in constant_docs(module, name)),
        "",
    ]


class PublicNames(SphinxDirective):
    """Document every name in a module's ``__all__``; what the top level offers too is described only there."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        elsewhere = set() if module is secateur else set(secateur.__all__)
        lines = [f".. automodule:: {module.__name__}", "   :no-members:", ""]
        for name in module.__all__:
            lines += [] if name in elsewhere else description(module, name)
        return self.parse_text_to_nodes("\n".join(lines))


def public_names() -> Iterator[str]:
    """Yield every name in the ``__all__`` of every module that is there to be imported."""
    parts = [part.name for part in pkgutil.iter_modules(secateur.__path__) if part.name != "cli"]
    parts = [name for name in parts if not name.startswith("_")] + [f"integrations.{name}" for name in ADAPTERS]
    yield from (f"secateur.{name}" for name in secateur.__all__)
    for part in parts:
        names = importlib.import_module(f"secateur.{part}").__all__
        yield from (f"secateur.{part}.{name}" for name in names if name not in secateur.__all__)


def refuse_missing(app: Sphinx, environment: BuildEnvironment) -> None:
    """Warn, which ends a build with ``-W``, of public names that are on no page."""
    there = environment.domains["py"].data["objects"]
    missing = [name for name in public_names() if name not in there]
    if missing:
        getLogger(__name__).warning("public names that api.md does not have: %s", ", ".join(missing))


def setup(app: Sphinx) -> None:
    app.add_directive("public-names", PublicNames)
    app.connect("env-check-consistency", refuse_missing)
