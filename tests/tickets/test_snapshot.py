"""Snapshots own their memory, say what they hold, and go through a file unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from secateur import HolderError, InvalidInputError, ShapeError, UnsupportedError, prune_
from secateur.tickets import Snapshot, rewind_, rewind_learning_rate_
from tests.masks.oracles import bits
from tests.tickets.models import Normed, train, values


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def test_snapshot_keeps_what_was_while_training_goes_on() -> None:
    model = Normed()
    optimizer = adam(model)
    train(model, optimizer, range(2))
    before = values(model)
    moments = bits(optimizer.state[model.conv.weight]["exp_avg"])
    snapshot = Snapshot.of(model, optimizer)
    train(model, optimizer, range(2, 5))
    kept = {name: bits(tensor) for name, tensor in {**snapshot.parameters, **snapshot.buffers}.items()}
    assert kept == before
    assert before != values(model)
    assert bits(snapshot.optimizers[0].state["conv.weight"]["exp_avg"]) == moments
    assert moments != bits(optimizer.state[model.conv.weight]["exp_avg"])


def test_writing_into_a_snapshot_does_not_reach_the_model() -> None:
    model = Normed()
    snapshot = Snapshot.of(model)
    before = values(model)
    for tensor in (*snapshot.parameters.values(), *snapshot.buffers.values()):
        tensor.fill_(7)
    assert values(model) == before


def test_tied_parameter_is_kept_once() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["table"].weight
    assert list(Snapshot.of(model).parameters) == ["table.weight"]


def test_buffers_outside_the_state_dict_are_left_alone() -> None:
    assert "calls" not in Snapshot.of(Normed()).buffers


def test_compiled_model_and_its_original_have_the_same_names() -> None:
    model = Normed()
    assert list(Snapshot.of(torch.compile(model)).parameters) == list(Snapshot.of(model).parameters)


def scheduled(kind: str, model: nn.Module) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = {
        "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "milestones": lambda: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4]),
        "cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12),
        "chain": lambda: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)],
            [2],
        ),
        "plateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    }
    return optimizer, made[kind]()


def rates(model: nn.Module, optimizer: Any, scheduler: Any, steps: range) -> list[tuple[float, float]]:
    found = []
    for step in steps:
        train(model, optimizer, [step])
        scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
    return found


@pytest.mark.parametrize("kind", ["step", "milestones", "cycle", "chain", "plateau"])
@pytest.mark.parametrize("through_file", [False, True])
def test_schedule_runs_again_from_the_snapshot(kind: str, through_file: bool, tmp_path: Path) -> None:
    model = Normed()
    optimizer, scheduler = scheduled(kind, model)
    rates(model, optimizer, scheduler, range(1))
    snapshot = Snapshot.of(model, optimizer, scheduler=scheduler, step=1)
    first = rates(model, optimizer, scheduler, range(1, 6))
    if through_file:
        snapshot.save(tmp_path / "a.safetensors")
        snapshot = Snapshot.load(tmp_path / "a.safetensors")
    weights = values(model)
    assert rewind_learning_rate_(snapshot, optimizer, scheduler) == 1
    assert values(model) == weights
    assert rates(model, optimizer, scheduler, range(1, 6)) == first
    assert len(set(first)) > 1


def test_file_holds_everything_bit_for_bit(tmp_path: Path) -> None:
    model = Normed().to(memory_format=torch.channels_last)
    optimizer = adam(model)
    train(model, optimizer, range(2))
    snapshot = Snapshot.of(model, optimizer, random_state=True, step=2)
    snapshot.save(tmp_path / "a.safetensors")
    loaded = Snapshot.load(tmp_path / "a.safetensors")
    for part in ("parameters", "buffers", "random_state"):
        mine, its = getattr(snapshot, part), getattr(loaded, part)
        assert list(mine) == list(its)
        assert all(mine[name].dtype == its[name].dtype and torch.equal(mine[name], its[name]) for name in mine)
    assert loaded.step == 2
    assert loaded.optimizers[0].groups == snapshot.optimizers[0].groups
    for name, state in snapshot.optimizers[0].state.items():
        assert all(torch.equal(state[key], loaded.optimizers[0].state[name][key]) for key in state)
    assert repr(loaded) == "Snapshot: 6 parameters, 3 buffers, 1 optimizers at step 2"


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no snapshot")
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "plain")
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        Snapshot.load(tmp_path / "text")
    with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur\.snapshot\.1"):
        Snapshot.load(tmp_path / "plain")


def damaged(path: Path, spoil: Any) -> Path:
    """A snapshot's file whose header, or whose tensors, have been changed."""
    Snapshot.of(Normed(), random_state=True).save(path)
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["snapshot"])
    header = spoil(tensors, header) or header
    safetensors.torch.save_file(tensors, path, {"snapshot": header if isinstance(header, str) else json.dumps(header)})
    return path


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda tensors, header: header.pop("buffers") and None, "is damaged[\\s\\S]*KeyError: 'buffers'"),
        (lambda tensors, header: tensors.pop("parameters.head.weight") is None, r"is damaged[\s\S]*head\.weight"),
        (lambda tensors, header: header.update(step="late"), r"is damaged[\s\S]*late"),
        (lambda tensors, header: header.update(parameters=[1]), "is damaged"),
        (lambda tensors, header: header.update(optimizers={"list": [{"dict": [["a", 1]]}]}), "is damaged"),
        (lambda tensors, header: "{no json", r"not a file of the kind secateur\.snapshot\.1"),
        (lambda tensors, header: "[1]", r"not a file of the kind secateur\.snapshot\.1"),
    ],
    ids=["no buffers", "no tensor", "no number", "other kind", "other optimizer", "no JSON", "no dict"],
)
def test_damaged_files_are_refused(spoil: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Snapshot.load(damaged(tmp_path / "snapshot", spoil))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_truncated_files_are_refused(share: float, tmp_path: Path) -> None:
    Snapshot.of(Normed()).save(tmp_path / "snapshot")
    whole = (tmp_path / "snapshot").read_bytes()
    (tmp_path / "snapshot").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InvalidInputError, match="is not a safetensors file"):
        Snapshot.load(tmp_path / "snapshot")


def test_state_that_no_file_can_hold_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    model = Normed()
    optimizer = adam(model)
    optimizer.state[model.conv.weight]["hook"] = {1, 2}
    snapshot = Snapshot.of(model, optimizer)
    with pytest.raises(UnsupportedError, match=r"cannot save 'optimizers\.0\.state\.conv\.weight\.hook'"):
        snapshot.save(tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a module is needed"):
        Snapshot.of({"weight": torch.ones(2)})
    with pytest.raises(UnsupportedError, match=r"'weight' has no value yet"):
        Snapshot.of(nn.LazyLinear(3))
    with pytest.raises(UnsupportedError, match=r"'conv\.weight' has no value: it is on meta"):
        Snapshot.of(Normed().to("meta"))
    with pytest.raises(HolderError, match="made for another model"):
        Snapshot.of(Normed(), adam(Normed()))
    with pytest.raises(InvalidInputError, match="is not a scheduler"):
        Snapshot.of(Normed(), scheduler=3)


def resized() -> nn.Module:
    model = Normed()
    model.head = nn.Linear(6, 4)
    return model


def renamed() -> nn.Module:
    model = Normed()
    model.last = model.__dict__["_modules"].pop("head")
    return model


def complex_() -> nn.Module:
    model = Normed()
    model.head = nn.Linear(6, 3, dtype=torch.complex64)
    return model


@pytest.mark.parametrize(
    ("other", "named"), [(resized, "head.weight"), (renamed, "last.weight"), (complex_, "head.weight")]
)
def test_snapshot_of_another_architecture_is_refused_before_anything_changes(other: Any, named: str) -> None:
    model = other()
    optimizer = adam(model)
    masks = prune_(model, optimizer, sparsity=0.5)
    before, state = values(model), masks.state_dict()
    with pytest.raises(ShapeError, match=f"another architecture: '{named}' does not fit"):
        rewind_(model, Snapshot.of(Normed()), optimizer)
    assert values(model) == before
    assert all(torch.equal(state[key], masks.state_dict()[key]) for key in state)
