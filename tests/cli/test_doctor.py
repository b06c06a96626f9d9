"""``secateur doctor``: scripts of users, run unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from tests.cli.conftest import Result, Run

CUT = """
import torch
from torch import nn

layer = nn.Linear(100, 10)
loss = 5 - layer(torch.ones(100)).sum()
loss.backward()
layer.weight.data = layer.weight.data[:, :90]
layer.weight.grad.data = layer.weight.grad.data[:, :90]
loss = 5 - layer(torch.ones(90)).sum()
loss.backward()
"""

REPLACED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.sc1, self.sc2 = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, input_size)

    def forward(self, x):
        return self.sc2(torch.relu(self.sc1(x)))


def main():
    model = Net(32, 64)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(256, 32)
    for step in range(20):
        opt.zero_grad()
        (model(data) - data).pow(2).mean().backward()
        opt.step()
        if step >= 5:
            model.sc1.weight = nn.Parameter(1.0 * model.sc1.weight)
            model.sc2.weight = nn.Parameter(1.0 * model.sc2.weight)
    print("done")


if __name__ == "__main__":
    main()
"""

TRAINING = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = {optimizer}
data = torch.randn(64, 12)
{before}
for step in range(12):
    optimizer.zero_grad()
    {forward}
    loss = model(data).pow(2).mean()
    {backward}
    optimizer.step()
    {after}
print("done")
"""


def training(
    *,
    optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    before: str = "",
    forward: str = "",
    backward: str = "loss.backward()",
    after: str = "",
) -> str:
    """A script that trains a small model, with lines of its own."""
    return TRAINING.format(optimizer=optimizer, before=before, forward=forward, backward=backward, after=after)


def line_of(script: str, code: str) -> int:
    """The number of the line with this code."""
    return next(number for number, line in enumerate(script.splitlines(), 1) if line.strip() == code)


class Doctor:
    """Runs scripts in a folder of their own."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder = run, folder

    def __call__(self, script: str, *words: object) -> Result:
        (self.folder / "train.py").write_text(script)
        return self.run("doctor", "--json", self.folder / "found.json", self.folder / "train.py", *words)

    @property
    def found(self) -> list[tuple[str, int | None, list[int], int | None]]:
        """Code, step, lines and line at which it was seen, of each finding."""
        findings = json.loads((self.folder / "found.json").read_text())["findings"]
        return [
            (f["code"], f["step"], [line["line"] for line in f["lines"]], f["seen"] and f["seen"]["line"])
            for f in findings
        ]


@pytest.fixture
def doctor(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """The command, with its findings."""
    monkeypatch.chdir(tmp_path)
    return Doctor(run, tmp_path)


def test_first_question_is_diagnosed_beside_the_error_of_autograd(doctor: Doctor) -> None:
    result = doctor(CUT)
    assert result.status == 1
    assert result.out == ""
    assert doctor.found == [("stale-autograd-graph", None, [8], 10)]
    assert "train.py:8: layer.weight.data = layer.weight.data[:, :90]" in result.err
    diagnosis, _, trace = result.err.partition("Traceback (most recent call last)")
    assert "stale-autograd-graph" in diagnosis
    assert "returned an invalid gradient" in trace
    assert 'train.py", line 11, in <module>' in trace
    assert "secateur/cli" not in trace
    assert "runpy" not in trace


def test_second_question_is_diagnosed_before_the_step_that_would_go_wrong(doctor: Doctor) -> None:
    result = doctor(REPLACED)
    assert (result.status, result.out) == (0, "done\n")
    first = line_of(REPLACED, "model.sc1.weight = nn.Parameter(1.0 * model.sc1.weight)")
    step = line_of(REPLACED, "opt.step()")
    assert doctor.found == [("stale-optimizer-reference", 7, [first, first + 1], step)]
    assert "does not hold sc1.weight, sc2.weight" in result.err
    assert result.err.endswith("secateur doctor: 20 optimizer steps, 1 finding\n")


@pytest.mark.parametrize(
    ("parts", "code", "step"),
    [
        ({"after": "if step == 3: model[2] = nn.Linear(16, 3)"}, "stale-optimizer-reference", 5),
        ({"before": "model.append(nn.Linear(3, 3))"}, "parameter-not-in-optimizer", 1),
        ({"after": "if step == 3: model.append(nn.Linear(3, 3))"}, "parameter-not-in-optimizer", 5),
        ({"after": "if step == 3: model[0].weight.data *= torch.rand(16, 12) > 0.5"}, "drifted-mask", 6),
        ({"backward": "loss.backward(); optimizer.zero_grad()"}, "no-gradient", 6),
        ({"backward": ""}, "no-gradient", 6),
        ({"optimizer": "torch.optim.SGD(model.parameters(), lr=0.0)"}, "lr-zero", 6),
        ({"before": "import copy; model = copy.deepcopy(model)"}, "stale-optimizer-reference", 2),
        ({"before": "data[:] = torch.nan"}, "non-finite", 2),
        (
            {"optimizer": "torch.optim.SGD(model[2].parameters(), lr=0.1)"},
            "parameter-not-in-optimizer",
            1,
        ),
        ({"before": "model.insert(1, nn.Dropout(0.1)); model.eval()"}, "eval-mode", 2),
    ],
    ids=lambda value: next(iter(value.items()))[1] if isinstance(value, dict) else None,
)
def test_each_kind_of_trouble_is_found_once_at_its_first_step(
    parts: dict[str, str], code: str, step: int, doctor: Doctor
) -> None:
    result = doctor(training(**parts))
    assert (result.status, result.out) == (0, "done\n")
    assert [(found[0], found[1]) for found in doctor.found] == [(code, step)]
    assert doctor.found[0][3] is not None


HEALTHY = {
    **{
        name: {"optimizer": f"torch.optim.{name}(model.parameters(), lr=0.01)"}
        for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop")
    },
    "LBFGS": {
        "optimizer": "torch.optim.LBFGS(model.parameters(), lr=0.1)",
        "before": "step_ = optimizer.step\n"
        "def closure():\n    optimizer.zero_grad(); loss = model(data).pow(2).mean(); loss.backward(); return loss\n"
        "optimizer.step = lambda: step_(closure)",
    },
    "scheduler that ends at zero": {
        "before": "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)",
        "after": "scheduler.step()",
    },
    "warm-up": {
        "before": "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 4))",
        "after": "scheduler.step()",
    },
    "averaged model": {
        "before": "average = torch.optim.swa_utils.AveragedModel(model)",
        "after": "average.update_parameters(model); average(data)",
    },
    "soft updates through data": {
        "before": "import copy; target = copy.deepcopy(model)",
        "after": "[t.data.mul_(0.9).add_(0.1 * p.data) for t, p in zip(target.parameters(), model.parameters())]",
    },
    "accumulation": {"forward": "for _ in range(3): model(data).pow(2).mean().div(4).backward()"},
    "resize_": {
        "before": "import secateur",
        "after": "if step == 4: secateur.resize_(model, '0.weight', dim=1, keep=range(9), optimizer=optimizer); "
        "data = data[:, :9]",
    },
    "shrink_": {
        "before": "import secateur",
        "after": "if step == 4: secateur.shrink_(model, data, sparsity=0.5, optimizer=optimizer)",
    },
    "prune_": {"before": "import secateur; masks = secateur.prune_(model, optimizer, sparsity=0.8)"},
    "prune_ in mid-training": {
        "before": "import secateur",
        "after": "if step == 6: masks = secateur.prune_(model, optimizer, sparsity=0.8)",
    },
    "masks by hand": {
        "before": "mask = torch.rand(16, 12) > 0.5",
        "after": "model[0].weight.data *= mask",
    },
    "torch.nn.utils.prune": {
        "after": "if step == 3: torch.nn.utils.prune.l1_unstructured(model[0], 'weight', 0.5)",
    },
    "frozen part": {"before": "model[0].requires_grad_(False)"},
    "layer added with its parameters": {
        "after": "if step == 3: model.append(nn.Linear(3, 3)); "
        "optimizer.add_param_group({'params': model[-1].parameters()})",
    },
    "optimizer made anew": {
        "after": "if step == 3: model[2] = nn.Linear(16, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    },
    "optimizer that has done its work": {
        "after": "if step == 3:\n        model[2], first = nn.Linear(16, 2), optimizer\n"
        "        optimizer = torch.optim.Adam(model.parameters())",
    },
    "head first, then all": {
        "optimizer": "torch.optim.Adam(model[2].parameters())",
        "before": "model[0].requires_grad_(False)",
        "after": "if step == 5:\n        first = optimizer\n"
        "        optimizer = torch.optim.Adam(model.requires_grad_().parameters())",
    },
    "two models by turns": {
        "before": "other = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))\n"
        "second = torch.optim.Adam(other.parameters())",
        "forward": "second.zero_grad(); other(data).pow(2).mean().backward(); second.step()",
    },
    "optimizer in the backward pass": {
        "before": "own = {p: torch.optim.Adam([p]) for p in model.parameters()}\n"
        "def moved(p): own[p].step(); own[p].zero_grad()\n"
        "for p in model.parameters(): p.register_post_accumulate_grad_hook(moved)",
        "optimizer": "torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)",
        "forward": "optimizer.param_groups[0]['params'][0].sum().backward()",
    },
    "inputs that are trained": {
        "optimizer": "torch.optim.Adam([torch.randn(64, 12, requires_grad=True)])",
        "before": "data = optimizer.param_groups[0]['params'][0]",
    },
    "clipped weights": {"after": "[p.data.clamp_(-0.1, 0.1) for p in model.parameters()]"},
    "compiled model": {"before": "model = torch.compile(model, backend='eager', fullgraph=True)"},
    "parts of another model": {
        "before": "whole = model; model = nn.Sequential(*list(whole)[:2], nn.Linear(16, 2))\n"
        "optimizer = torch.optim.Adam(model.parameters())",
    },
    "method instead of a call": {
        "before": "class Net(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.inner = nn.Linear(12, 3)\n"
        "    def predict(self, x): return self.inner(x)\n"
        "net = Net(); model = net.predict; optimizer = torch.optim.Adam(net.parameters())",
    },
    "module made in each step": {"forward": "nn.Linear(3, 3); nn.Sequential(nn.Linear(3, 3))"},
    "loader with workers": {
        "before": "from torch.utils.data import DataLoader\nloader = iter(DataLoader(data, 4, num_workers=1))",
        "forward": "next(loader)",
    },
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_script_is_met_with_silence(name: str, doctor: Doctor) -> None:
    result = doctor(training(**HEALTHY[name]))
    assert (result.status, result.out) == (0, "done\n")
    assert doctor.found == []
    steps = {"two models by turns": 24, "optimizer in the backward pass": 60}.get(name, 12)
    assert result.err == f"secateur doctor: {steps} optimizer steps, no findings\n"


def test_script_finds_its_arguments_its_folder_and_its_name(doctor: Doctor) -> None:
    (doctor.folder / "beside.py").write_text("word = 'imported'")
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    script = "import sys, beside; print(__name__, __file__, sys.argv, sys.path[0], beside.word)"
    result = doctor(script, "--", "--epochs", "3", "--json", "-m")
    path = str(doctor.folder / "train.py")
    expected = f"__main__ {path} {[path, '--epochs', '3', '--json', '-m']} {doctor.folder} imported\n"
    assert (result.status, result.out) == (0, expected)
    assert doctor("import sys; print(sys.argv[1:])", "--epochs", "3").out == "['--epochs', '3']\n"
    assert (list(sys.argv), list(sys.path), sys.modules["__main__"]) == before
    sys.modules.pop("beside")


def test_module_runs_as_python_runs_it(run: Run, folder: Path) -> None:
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("")
    (folder / "my_package" / "train.py").write_text(training(before="import sys; print(sys.argv[1:], __package__)"))
    result = run("doctor", "-m", "my_package.train", "--", "fast")
    assert (result.status, result.out) == (0, "['fast'] my_package\ndone\n")
    assert result.err == "secateur doctor: 12 optimizer steps, no findings\n"
    sys.modules.pop("my_package")


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise ValueError('three')", 1, "ValueError: three"),
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("this is no Python", 1, "SyntaxError"),
    ],
)
def test_exit_status_and_errors_are_those_of_the_script(end: str, status: int, error: str, doctor: Doctor) -> None:
    result = doctor(f"import sys\n{end}\n")
    assert result.status == status
    assert error in result.err
    assert ("Traceback" in result.err) == (error not in ("", "no data\n") and "SyntaxError" not in error)
    assert doctor.found == []


def test_script_that_never_trains_is_told_in_one_line(doctor: Doctor) -> None:
    result = doctor("print('hello')")
    assert (result.status, result.out) == (0, "hello\n")
    assert result.err == "secateur doctor: no optimizer of torch.optim has made a step; no findings\n"


def test_quiet_doctor_speaks_of_findings_only(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(training())
    assert run("doctor", "--quiet", tmp_path / "train.py").err == ""
    (tmp_path / "train.py").write_text(REPLACED)
    err = run("doctor", "--quiet", tmp_path / "train.py").err
    assert "stale-optimizer-reference" in err
    assert "optimizer steps" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["-m", "no_such_package.train"], "there is no module 'no_such_package.train'"),
        (["--json", "nowhere/found.json", "train.py"], "nowhere"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_runs(words: list[str], message: str, doctor: Doctor) -> None:
    (doctor.folder / "train.py").write_text("print('ran')")
    result = doctor.run("doctor", *words)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("secateur: ")
    assert message in result.err


def test_doctor_needs_a_script(run: Run) -> None:
    assert run("doctor").status == 2


def test_findings_are_written_although_the_script_fails(doctor: Doctor) -> None:
    result = doctor(training(after="if step == 3: model[2] = nn.Linear(16, 3)\n    if step == 6: raise SystemExit(4)"))
    assert result.status == 4
    data = json.loads((doctor.folder / "found.json").read_text())
    assert (data["steps"], [f["code"] for f in data["findings"]]) == (7, ["stale-optimizer-reference"])
    assert data["findings"][0]["lines"][0]["code"] == "if step == 3: model[2] = nn.Linear(16, 3)"
    assert data["findings"][0]["subject"] == "Sequential with SGD"
    assert [path.name for path in doctor.folder.glob(".*")] == []


def test_everything_is_as_before_after_a_script(doctor: Doctor) -> None:
    doctor(training(after="if step == 3: 1 / 0"))
    assert "data" not in vars(nn.Parameter)
    assert not nn.modules.module._global_forward_pre_hooks


def test_installed_program_gives_the_script_its_own_standard_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REPLACED)
    words = [str(Path(sys.executable).with_name("secateur")), "doctor", "train.py"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    alone = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (alone.returncode, alone.stdout) == (0, "done\n")
    assert alone.stderr == ""
    assert ended.stderr.startswith("secateur doctor: Net with SGD\nerror stale-optimizer-reference (before step 7): ")
    assert "train.py:24: model.sc1.weight = nn.Parameter(1.0 * model.sc1.weight)" in ended.stderr
    assert ended.stderr.count("stale-optimizer-reference") == 1
