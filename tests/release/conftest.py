"""What `make dist` has built."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def built(pattern: str) -> Path:
    """The only file in ``dist`` that has this form."""
    (found,) = (ROOT / "dist").glob(pattern)
    return found


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel."""
    return built("*.whl")


@pytest.fixture(scope="session")
def sdist() -> Path:
    """The source distribution."""
    return built("*.tar.gz")
