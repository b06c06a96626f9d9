"""What is in the two files that `make dist` builds."""

from __future__ import annotations

import tarfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from secateur._native.compiling import compiler
from tests.documents import ROOT

pytestmark = pytest.mark.release

KERNELS = "secateur/_native/kernels.so"


def sources(folder: str) -> set[str]:
    """The files of a folder of the checkout, without what is compiled from them."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if path.suffix != ".so" and "__pycache__" not in path.parts}


def information(wheel: Path, name: str) -> str:
    """One file about the wheel."""
    with ZipFile(wheel) as archive:
        return archive.read(f"{wheel.name.rsplit('-', 3)[0]}.dist-info/{name}").decode()


@pytest.fixture
def metadata(wheel: Path) -> Message:
    return message_from_string(information(wheel, "METADATA"))


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {name.removeprefix("src/") for name in sources("src")}
    assert {"secateur/py.typed", "secateur/_native/sources/secateur.h", "secateur/report/page.css"} <= package
    assert names - {KERNELS} == package


def test_wheel_is_for_this_platform_if_and_only_if_kernels_are_in_it(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        has_kernels = KERNELS in archive.namelist()
    facts = message_from_string(information(wheel, "WHEEL"))
    assert has_kernels == (compiler() is not None)
    assert facts["Root-Is-Purelib"] == str(not has_kernels).lower()
    assert (facts["Tag"] == "py3-none-any") == (not has_kernels)
    assert wheel.stem.endswith(facts["Tag"])


def test_wheel_names_its_version_requirements_licence_and_program(
    wheel: Path, metadata: Message, project: dict[str, Any]
) -> None:
    requirements = map(Requirement, metadata.get_all("Requires-Dist"))
    assert metadata["Version"] == project["version"]
    assert {str(one) for one in requirements if one.marker is None} == set(project["dependencies"])
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert metadata["License-Expression"] == "MIT"
    assert information(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "secateur = secateur.cli:main" in information(wheel, "entry_points.txt")
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_sdist_holds_sources_tests_pages_and_what_builds_them_but_nothing_compiled(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    folders = {name for folder in ("src", "tests", "docs", "benchmarks", "examples") for name in sources(folder)}
    alone = {path.name for path in ROOT.glob("*.md")} | {"LICENSE", "Makefile", "constraints.txt", "hatch_build.py"}
    assert names == folders | alone | {"pyproject.toml", "PKG-INFO", ".gitignore"}
