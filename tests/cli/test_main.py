"""What all commands have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import secateur
from secateur.cli import commands
from tests.cli.conftest import Run

SCRIPT = str(Path(sys.executable).with_name("secateur"))
NAMES = [command.__name__.rpartition(".")[2] for command in commands.COMMANDS]


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "secateur"]], ids=["script", "module"])
def test_installed_program_runs_and_fails_with_its_status(start: list[str], folder: Path) -> None:
    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*start, *words], capture_output=True, text=True, check=False)

    assert ended("--version").stdout == f"secateur {secateur.__version__}\n"
    fine = ended("analyze", "my_models:mlp", "--input", "2x8", "--json")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert '"units": 32' in fine.stdout
    wrong = ended("analyze", "my_models:no", "--input", "2x8")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("secateur: 'my_models' has no 'no'.")
    assert "Traceback" not in wrong.stderr
    assert ended("analyze").returncode == 2


def test_reader_that_has_seen_enough_is_no_error(folder: Path) -> None:
    words = f"'{sys.executable}' -m secateur completion fish | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(name: str, run: Run) -> None:
    shown = run(name, "--help")
    assert shown.status == 0
    assert all(option in shown.out for option in ("--json", "--quiet", "--traceback"))
    assert "%%" not in shown.out


def test_help_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(name in out.split() for name in NAMES)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such-command"],
        ["analyze"],
        ["analyze", "my_models", "--input", "2x8"],
        ["analyze", "my_models:mlp"],
        ["analyze", "my_models:mlp", "--input", "2 by 8"],
        ["analyze", "my_models:mlp", "--input", "2x8", "--arg", "width"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--macs", "half", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--override", "0", "--out", "x"],
        ["prune", "my_models:mlp", "--pattern", "4:2", "--out", "x"],
        ["prune", "my_models:mlp", "--pattern", "stripes", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--macs", "1.5", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--params", "0", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--latency", "nan", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "90", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--macs", "0.5", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--round-to", "0", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--min-units", "0", "--out", "x"],
        ["shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--override", "0=7", "--out", "x"],
        ["analyze", "my_models:mlp", "--input", "x=2x8", "--input", "2x8"],
        ["profile", "my_models:mlp", "--input", "2x8", "--threads", "none"],
        ["profile", "my_models:mlp", "--input", "2x8", "--seconds", "-1"],
        ["profile", "my_models:mlp", "--input", "2x8", "--checkpoint", "a", "--checkpoint", "b"],
        ["demo", "--steps", "few"],
        ["completion", "powershell"],
    ],
)
def test_wrong_usage_ends_with_status_two(words: list[str], run: Run, folder: Path) -> None:
    result = run(*words)
    assert result.status == 2
    assert result.out == ""
    assert "usage: secateur" in result.err
    assert sorted(path.name for path in folder.iterdir()) == ["my_models.py"]


def test_json_is_alone_on_standard_output_whatever_the_model_prints(run: Run, folder: Path) -> None:
    result = run("analyze", "my_models:noisy", "--input", "2x8", "--json")
    assert result.data["parameters"] == 8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4
    assert "made by hand" in result.err


def test_json_is_alone_on_standard_output_whatever_programs_print(folder: Path) -> None:
    words = [SCRIPT, "analyze", "my_models:loud", "--input", "2x8", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["units"] == 32
    assert done.stderr == "made by a program\n"


def test_model_that_ends_the_program_is_an_error(run: Run, folder: Path) -> None:
    result = run("analyze", "my_models:ending", "--input", "2x8")
    assert (result.status, result.out) == (1, "")
    assert "has ended the program before the command was done" in result.err


def test_error_of_the_model_s_own_is_told_with_its_line(run: Run, folder: Path) -> None:
    result = run("analyze", "my_models:Picky", "--input", "2x9")
    assert result.status == 1
    assert result.out == ""
    assert "ValueError: eight features, please, not 9" in result.err
    line = next(n for n, text in enumerate((folder / "my_models.py").read_text().splitlines(), 1) if "please" in text)
    assert f"my_models.py:{line}" in result.err
    assert "Traceback" not in result.err


def test_traceback_is_shown_to_who_asks(run: Run, folder: Path) -> None:
    with pytest.raises(ValueError, match="eight features"):
        run("analyze", "my_models:Picky", "--input", "2x9", "--traceback")


def test_nothing_but_the_result_is_printed_where_there_is_no_terminal(run: Run, folder: Path) -> None:
    loud, quiet = (run("analyze", "my_models:mlp", "--input", "2x8", *more) for more in ([], ["--quiet"]))
    assert loud == quiet
    assert loud.err == ""


def test_interrupted_command_ends_as_shells_expect(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(secateur, "analyze", stop)
    result = run("analyze", "my_models:mlp", "--input", "2x8")
    assert (result.status, result.out, result.err) == (130, "", "")
