"""Everything that may take long says so, counts to its end, and gives the same as without.

The rows are the public functions and commands that have bars. What has a bar anywhere in the package is in one of them,
and every command is, so that new ones have to join.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import secateur
from secateur import _bars, _progress, checkpoints, cli, report, scores, shrink, tickets
from secateur.cli import commands
from tests.cli.conftest import MODELS
from tests.dst.methods import METHODS, make

PACKAGE = Path(secateur.__file__).parent
NO_BAR = {"doctor", "completion"}  # a script of the user's, which prints itself; a few lines of text
BATCHES = [torch.linspace(-1, 1, 24).view(3, 8), torch.linspace(-2, 1, 24).view(3, 8)]
INPUTS = torch.linspace(-1, 1, 16).view(2, 8)

Row = Callable[[Path], object]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def emptied() -> tuple[nn.Sequential, dict[str, Tensor]]:
    """A model, and masks that leave two of its units nothing."""
    model = mlp()
    mask = torch.ones(16, 8, dtype=torch.bool)
    mask[:2] = False
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(mask)
    return model, {"0.weight": mask}


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch).square().sum()
    return out


def planned(score: shrink.UnitScore) -> list[tuple[int, ...]]:
    plan = shrink.plan_shrink(mlp(), INPUTS, sparsity=0.5, score=score)
    return [tuple(keep.tolist()) for dims in plan.keep.values() for keep in dims.values()]


def masked(folder: Path) -> object:
    model, masks = emptied()
    return shrink.plan_masked(model, INPUTS, masks).keep


def by_latency(folder: Path) -> object:
    return shrink.plan_shrink(mlp(), INPUTS, budget=shrink.Budget(latency=1.0)).parameters


def verified(folder: Path) -> object:
    model = mlp()
    shrink.plan_shrink(model, INPUTS, sparsity=0.5).apply_(model, verify=INPUTS)
    return model(INPUTS).tolist()


def compressed(folder: Path) -> object:
    return [line.name for line in secateur.compress(mlp(), INPUTS).report.layers]


def profiled(folder: Path) -> object:
    return [row.macs for row in secateur.profile({"one": mlp(), "other": mlp()}, INPUTS, seconds=0.01).rows]


def cut(folder: Path) -> object:
    safetensors.torch.save_file(mlp().state_dict(), folder / "full.safetensors")
    cuts = {"0.bias": checkpoints.Cut({0: torch.tensor([1, 3])})}
    checkpoints.cut_checkpoint(checkpoints.open_checkpoint(folder / "full.safetensors"), cuts, folder / "cut")
    return (folder / "cut").read_bytes()


def inspected(folder: Path) -> object:
    safetensors.torch.save_file(mlp().state_dict(), folder / "full.safetensors")
    return repr(checkpoints.inspect(folder / "full.safetensors"))


def reported(folder: Path) -> object:
    model = mlp()
    return report.write_html(folder / "page", plan=shrink.plan_shrink(model, INPUTS, sparsity=0.5)).read_text()


def found_tickets(folder: Path) -> object:
    rounds = tickets.imp_(mlp(), lambda model: None, sparsities=[0.0, 0.5])
    return [each.zeros for each in rounds]


def command(words: str) -> Row:
    def run(folder: Path) -> object:
        model = mlp()
        safetensors.torch.save_file(model.state_dict(), folder / "full.safetensors")
        shrink.plan_shrink(model, INPUTS, sparsity=0.5).save(folder / "plan.safetensors")
        assert cli.main(words.split()) == 0
        return {path.name: safetensors.torch.load_file(path) for path in folder.rglob("*.safetensors")}

    return run


MLP = "my_models:mlp --input 2x8"
BY_BATCHES = {"scoring by batches"}
PLANNING = {"planning", "analyzing"}
COMPRESSING = {"compressing", "looking at layers", "trying formats", "measuring the whole model", "timing"}
PROFILING = {"measuring", "counting operations", "timing"}
REPORTING = {"gathering figures", "drawing figures"}

ROWS: dict[str, tuple[Row, set[str]]] = {
    "analyze": (lambda folder: secateur.analyze(mlp(), INPUTS).macs(), {"analyzing"}),
    "plan_shrink by latency": (by_latency, PLANNING | {"timing products"}),
    "plan_masked": (masked, {"finding empty units", "analyzing", "trying other parameters"}),
    "apply_ verified": (verified, PLANNING | {"running without the units", "comparing"}),
    "synflow": (lambda folder: scores.synflow(mlp(), INPUTS, sparsity=0.5, rounds=4), {"scoring in rounds"}),
    "compress": (compressed, COMPRESSING),
    "profile": (profiled, PROFILING),
    "cut_checkpoint": (cut, {"cutting"}),
    "inspect": (inspected, {"inspecting"}),
    "write_html": (reported, REPORTING),
    "imp_": (found_tickets, {"training in rounds"}),
    **{
        f"score {name}": (partial(lambda score, folder: score(mlp(), loss, BATCHES), score), BY_BATCHES)
        for name, score in scores.DATA_SCORES.items()
    },
    **{
        f"unit score {name}": (partial(lambda score, folder: planned(score(loss, BATCHES)), score), BY_BATCHES)
        for name, score in shrink.DATA_SCORES.items()
    },
}
COMMANDS: dict[str, tuple[Row, set[str]]] = {
    "demo": (command("demo --steps 30"), {"training", "dense", "masked, 90 % zeros", "shrunk, 80 % of units"}),
    "analyze": (command(f"analyze {MLP}"), {"loading", "watching one run", "analyzing"}),
    "shrink": (
        command(f"shrink {MLP} --sparsity 0.5 --verify --out small"),
        {"loading", "choosing units", "removing units", "writing", "writing the report"} | PLANNING | REPORTING,
    ),
    "prune": (
        command("prune my_models:mlp --sparsity 0.5 --score synflow --input 1x8 --out sparse"),
        {"loading", "scoring", "scoring in rounds", "choosing weights", "writing"},
    ),
    "compress": (command(f"compress {MLP} --out fast"), {"loading", "choosing formats", "writing"} | COMPRESSING),
    "profile": (command(f"profile {MLP} --seconds 0.01"), {"loading", "measuring"} | PROFILING),
    "inspect": (command("inspect full.safetensors"), {"inspecting"}),
    "apply": (command("apply plan.safetensors full.safetensors --out cut.safetensors"), {"cutting"}),
}
ALL = ROWS | {f"secateur {name}": row for name, row in COMMANDS.items()}


class Recorded(_bars.Task):
    """A task that remembers what it said."""

    said: set[str]

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "what":
            self.__dict__.setdefault("said", set()).update({value} - {""})


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """All tasks that would have been shown at a terminal, in the order in which they were begun."""
    found: list[Recorded] = []
    monkeypatch.setattr(_progress, "_is_wanted", lambda: not _progress._num_silencers)
    monkeypatch.setattr(_progress, "Task", Recorded)
    monkeypatch.setattr(_progress, "_open", found.append)
    monkeypatch.setattr(_progress, "_close", lambda task: setattr(task, "is_over", True))
    return found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders, with a module of the user's beside them."""
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loud, quiet = tmp_path / "loud", tmp_path / "quiet"
    loud.mkdir()
    quiet.mkdir()
    yield loud, quiet
    sys.modules.pop("my_models", None)


def plain(result: object) -> object:
    """A result with tensors as lists."""
    return tree_map_only(Tensor, lambda tensor: tensor.tolist(), copy.copy(result))


@pytest.mark.parametrize("name", ALL)
def test_task_is_told_and_counted_and_changes_nothing(
    name: str, tasks: list[Recorded], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, said = ALL[name]
    monkeypatch.chdir(folders[0])
    loud = row(folders[0])
    assert said <= set().union(*(each.said for each in tasks))
    assert [(each.said, each.done, each.total) for each in tasks if each.total not in (None, each.done)] == []
    assert all(vars(each).get("is_over") for each in tasks)
    count = len(tasks)
    monkeypatch.chdir(folders[1])
    with report.without_progress():
        quiet = row(folders[1])
    assert len(tasks) == count
    assert plain(loud) == plain(quiet)


def test_every_command_but_two_is_among_them() -> None:
    names = {command.__name__.rpartition(".")[2] for command in commands.COMMANDS}
    assert names - NO_BAR == set(COMMANDS)


def told(tree: ast.AST) -> Iterator[tuple[str, object]]:
    """The calls in a module that begin a task, and what they say: a text, or None where it is computed."""
    place = {"task": 0, "track": 1, "begin": 0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in place:
            text = node.args[place[node.func.id]]
            yield node.func.id, text.value if isinstance(text, ast.Constant) else None


def test_everything_that_is_told_anywhere_is_among_them() -> None:
    texts = [
        (path.relative_to(PACKAGE).as_posix(), text)
        for path in PACKAGE.rglob("*.py")
        if path.name != "_progress.py" and "secateur._progress import" in (source := path.read_text(encoding="utf-8"))
        for _, text in told(ast.parse(source))
    ]
    assert [place for place, text in texts if text is None] == ["cli/demo.py"]  # names of the trainings
    assert {text for _, text in texts} - {None} <= set().union(*(said for _, said in ALL.values()))


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_training_have_no_bars(method: str, tasks: list[Recorded]) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make(method, model, optimizer)
    for _ in range(8):
        loss(model, INPUTS).backward()
        optimizer.step()
    assert tasks == []


def test_cuts_of_a_schedule_have_no_bars(tasks: list[Recorded]) -> None:
    schedule = secateur.shrink_schedule(mlp(), INPUTS, begin_step=1, end_step=2, num_cuts=2, final_sparsity=0.5)
    tasks.clear()
    plans = [schedule.step() for _ in range(3)]
    assert any(plan is not None and plan.keep for plan in plans)
    assert tasks == []


def test_quiet_commands_have_no_bars(tasks: list[Recorded], tmp_path: Path) -> None:
    safetensors.torch.save_file(mlp().state_dict(), tmp_path / "full.safetensors")
    assert cli.main(["inspect", str(tmp_path / "full.safetensors"), "--quiet"]) == 0
    assert tasks == []
