"""Frameworks that are not installed, and frameworks that nobody has asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {"lightning": "lightning.pytorch", "transformers": "transformers", "accelerate": "accelerate"}

BLOCKED = """
import sys
sys.modules[{blocked!r}] = None
try:
    import secateur.integrations.{name}
except ImportError as error:
    print(error)
"""


def output(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_missing_framework_is_named_with_the_extra_that_brings_it(name: str) -> None:
    shown = output(BLOCKED.format(blocked=FRAMEWORKS[name].partition(".")[0], name=name))
    assert shown == f"{FRAMEWORKS[name]} is not installed.\n  fix:   pip install 'secateur[{name}]'\n"


def test_nothing_of_the_frameworks_is_imported_before_it_is_used() -> None:
    code = f"import sys, secateur.integrations; print([n for n in {list(FRAMEWORKS)} if n in sys.modules])"
    assert output(code) == "[]\n"
