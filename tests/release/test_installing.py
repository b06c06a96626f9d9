"""Installed where only its requirements are: from the wheel, and from the sdist with and without a compiler."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from secateur._native.compiling import compiler
from tests.release.environments import Environment, requirements

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

SMOKE = Path(__file__).with_name("smoke.py")
NOT_INSTALLED = {"accelerate", "lightning", "transformers"}


@dataclass(frozen=True)
class Installed:
    """An environment that secateur was installed in, what the first program in it found, and whether it has kernels."""

    environment: Environment
    facts: dict[str, Any]
    has_kernels: bool


@pytest.fixture(scope="module", params=["wheel", "sdist", "sdist without a compiler"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, project: Any) -> Installed:
    folder = tmp_path_factory.mktemp("environment")
    name, _, without = request.param.partition(" ")
    variables = {"CC": "/nonexistent/cc", "PATH": str(folder / "no programs")} if without else {}
    environment = Environment(folder / "venv", variables)
    builder = ["hatchling"] if name == "sdist" else []
    environment.make(requirements([*project["dependencies"], *builder]))
    environment.install(request.getfixturevalue(name))
    facts = json.loads(environment.program("python", "-I", str(SMOKE)))
    return Installed(environment, facts, not without and compiler() is not None)


def test_installed_package_is_the_one_that_is_used(installed: Installed, project: Any) -> None:
    assert installed.facts["file"] == str(installed.environment.site / "secateur" / "__init__.py")
    assert installed.facts["version"] == project["version"]
    assert installed.facts["summary"] == project["description"]
    assert installed.environment.program("secateur", "--version") == f"secateur {project['version']}\n"


def test_kernels_are_used_where_there_was_a_compiler_and_else_the_status_says_why(installed: Installed) -> None:
    library = installed.environment.site / "secateur" / "_native" / "kernels.so"
    assert library.exists() == installed.has_kernels
    if installed.has_kernels:
        assert installed.facts["native"].startswith(("native kernels: portable", "native kernels: avx"))
    else:
        assert installed.facts["native"].startswith(
            "native kernels: none, kernels.so was not compiled when the package"
        )
        assert installed.facts["native"].endswith("everything runs in pure torch")


def test_model_is_shrunk_masked_and_compressed_while_it_trains(installed: Installed) -> None:
    facts = installed.facts
    assert facts["channels"] == 8
    assert facts["zeros"] == pytest.approx(0.9, abs=0.005)
    assert all(math.isfinite(loss) for loss in facts["losses"])
    assert facts["difference"] < 1e-5
    assert facts["page"] == "<!DOCTYPE html>"


def test_every_module_imports_but_those_for_frameworks_that_are_not_there(installed: Installed) -> None:
    failed = installed.facts["not importable"]
    assert {name.rpartition(".")[2] for name in failed} == NOT_INSTALLED
    for name, text in failed.items():
        assert f"pip install 'secateur[{name.rpartition('.')[2]}]'" in text
