"""The commands of the guide, run as they stand there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.documents import ROOT, blocks

GUIDE = ROOT / "docs" / "guides" / "command_line.md"


def test_commands_run_and_print_what_is_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    page = [*blocks(GUIDE.read_text(encoding="utf-8"))]
    commands = 0
    for block, after in pairwise(page):
        if block.language != "shell":
            continue
        printed = ""
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[0] == "secateur" and ">" not in words:
                result = run(*words[1:])
                assert (result.status, result.err) == (0, ""), line
                printed += result.out
                commands += 1
            else:
                subprocess.run(["bash", "-c", line], env=environment, check=True)
        if after.language == "text":
            assert all(shown in printed.splitlines() for shown in after.text.splitlines())
    assert commands == 10
    assert {path.name for path in tmp_path.iterdir()} >= {
        "small",
        "vit",
        "sparse",
        "fast.safetensors",
        "cut.safetensors",
    }
