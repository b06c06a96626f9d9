"""How the documentation is built: Sphinx, its pages in Markdown, the reference from the docstrings."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version as version_of

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

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
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Changes", "Keeps"]
napoleon_use_rtype = False


def directive_for(value: object) -> str:
    """Name autodoc's directive for a public value."""
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


class PublicNames(SphinxDirective):
    """Document every name in a module's ``__all__``; what the top level offers too is described only there."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        top = importlib.import_module("secateur")
        elsewhere = set() if module is top else set(top.__all__)
        lines = [f".. automodule:: {module.__name__}", "   :no-members:", ""]
        for name in module.__all__:
            value = getattr(module, name)
            if name not in elsewhere and not inspect.ismodule(value):
                lines += [f".. {directive_for(value)}:: {module.__name__}.{name}"]
                lines += ["   :members:", "   :show-inheritance:"] if inspect.isclass(value) else []
                lines += [""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> None:
    app.add_directive("public-names", PublicNames)
