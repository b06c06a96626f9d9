"""``secateur completion``, run by the shells that there are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from secateur.cli import commands
from secateur.cli.shrink import SCORES
from tests.cli.conftest import Run

NAMES = [command.__name__.rpartition(".")[2] for command in commands.COMMANDS]
CASES = {
    "sh": ["shrink"],
    "": NAMES,
    "shrink --ma": ["--macs"],
    "shrink torchvision:resnet18 --score ": SCORES,
    "completion f": ["fish"],
    "prune --allocation u": ["uniform"],
}
BASH = """
source "$1"
COMP_WORDS=(secateur {words})
COMP_CWORD={place}
_secateur
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ }}
compadd() {{ shift; print -l -- "$@" }}
_describe() {{ print -l -- "${{(@)${{(@P)2}}%%:*}}" }}
_files() {{ }}
source "$1"
words=(secateur {words}) CURRENT={place}+1
_secateur
"""
FISH = """
source $argv[1]
complete -C "secateur {line}"
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completions(shell: str, script: Path, line: str) -> list[str]:
    """The words that a shell offers at the end of a line; zsh filters them itself, after they have been offered."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    text = SHELLS[shell].format(words=quoted, place=len(words), line=line)
    start = [shell, "-c", text, str(script)] if shell == "fish" else [shell, "-c", text, "test", str(script)]
    done = subprocess.run(start, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    offered = [each.split("\t")[0] for each in done.stdout.splitlines()]
    return [each for each in offered if each.startswith(words[-1])]


@pytest.mark.parametrize("line", CASES)
@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_shell_offers_what_there_is(shell: str, line: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(run("completion", shell).out)
    assert sorted(completions(shell, tmp_path / "script", line)) == sorted(CASES[line])


@pytest.mark.parametrize("shell", SHELLS)
def test_script_names_every_option_of_every_command(shell: str, run: Run) -> None:
    script = run("completion", shell).out
    for name in NAMES:
        options = [word for word in run(name, "--help").out.replace(",", " ").split() if word.startswith("--")]
        assert len(options) > 3
        for option in options:
            assert (f"-l {option[2:]} " if shell == "fish" else option) in script


def test_script_is_in_json_too(run: Run) -> None:
    assert run("completion", "bash", "--json").data == {"shell": "bash", "script": run("completion", "bash").out}
