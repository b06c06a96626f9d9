"""``secateur inspect``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import secateur
from secateur.cli import inspect as inspecting
from tests.cli.conftest import Run


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_file_is_shown(kind: str, run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 8)
    weight[:3] = 0
    state = {"fc.weight": weight, "head.weight": weight.clone(), "fc.bias": torch.ones(16)}
    write = safetensors.torch.save_file if kind == "safetensors" else torch.save
    write(state, tmp_path / "x")
    found = run("inspect", tmp_path / "x", "--json").data
    assert (found["entries"], found["zeros"]) == (272, 48)
    assert found["tied"] == [["fc.weight", "head.weight"]]
    dead = {tensor["name"]: tensor["dead_outputs"] for tensor in found["tensors"]}
    assert dead == {"fc.weight": 3, "head.weight": 3, "fc.bias": 0}
    out = run("inspect", tmp_path / "x").out
    assert "equal: fc.weight, head.weight" in out
    assert "18.75%" in out
    assert "48 of 272 entries are zero (17.65%)" in out


def test_masks_and_a_plan_beside_the_weights_are_told(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    secateur.prune_(model, sparsity=0.5)
    plan = secateur.plan_shrink(model, torch.randn(2, 8), sparsity=0.5)
    secateur.save(model, tmp_path / "x", plan=plan)
    found = run("inspect", tmp_path / "x", "--json").data
    assert (found["entries"], found["parts"].keys()) == (212, {"masks", "plan"})
    out = run("inspect", tmp_path / "x").out
    assert f"beside the weights: masks, {found['parts']['masks']:,} bytes" in out
    assert f"beside the weights: plan, {found['parts']['plan']:,} bytes" in out


Write = Callable[[nn.Module, Path], None]
X = torch.randn(2, 8)
KINDS: dict[str, Write] = {
    "weights": lambda model, path: safetensors.torch.save_file(model.state_dict(), path),
    "model": lambda model, path: secateur.save(model, path),
    "compressed": lambda model, path: secateur.compress(model, X).save(path),
    "plan": lambda model, path: secateur.plan_shrink(model, X, sparsity=0.5).save(path),
    "grow plan": lambda model, path: secateur.shrink.plan_grow(model, X, growth=1.5).save(path),
    "ticket": lambda model, path: ticket_of(model).save(path),
    "snapshot": lambda model, path: secateur.tickets.Snapshot.of(model).save(path),
}
"""Kinds of files -> a function that writes one of a small model."""


def ticket_of(model: nn.Module) -> secateur.tickets.Ticket:
    """A ticket whose masks keep a half."""
    before = secateur.tickets.Snapshot.of(model)
    secateur.prune_(model, sparsity=0.5)
    return secateur.tickets.Ticket.of(model, before)


def test_every_kind_of_file_of_the_library_is_here() -> None:
    assert {"weights", *inspecting._KINDS} == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_file_is_called_what_it_is_with_what_to_do_with_it(kind: str, run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    KINDS[kind](model, tmp_path / "x")
    data, out = run("inspect", tmp_path / "x", "--json").data, run("inspect", tmp_path / "x").out
    assert data["kind"] == kind
    assert ("entries are zero" in out) == ("sparsity" in data) == (kind in ("weights", "model"))
    what, use = inspecting._KINDS.get(kind, ("", ""))
    assert out.startswith(f"{tmp_path / 'x'} is {what}: " if what else f"{tmp_path / 'x'}")
    for name in re.findall(r"secateur\.([\w.]+)\(", use):
        assert operator.attrgetter(name)(secateur) is not None


def test_plan_is_shown_by_what_goes(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = secateur.plan_shrink(model, X, sparsity=0.5)
    plan.save(tmp_path / "x")
    assert str(plan) in run("inspect", tmp_path / "x").out
    data = run("inspect", tmp_path / "x", "--json").data
    assert (data["parameters"], data["macs"]) == ({"before": 212, "after": 108}, {"before": 384, "after": 192})
    assert [(group["before"], group["after"]) for group in data["groups"]] == [(16, 8)]


def test_dense_tensors_may_be_left_out(run: Run, tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2), "b": torch.zeros(2)}, tmp_path / "x")
    assert [each["name"] for each in run("inspect", tmp_path / "x", "--sparse", "--json").data["tensors"]] == ["b"]


def test_sharded_folder_is_shown_as_one(run: Run, llama_folder: Path) -> None:
    found = run("inspect", llama_folder, "--json").data
    assert len(found["tensors"]) == 2 * 9 + 3
    assert found["zeros"] == 0


@pytest.mark.parametrize("kind", ["missing", "pickle", "truncated", "text"])
def test_file_that_cannot_be_read_is_an_error(kind: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "pickle":
        torch.save(nn.Linear(2, 2), path)
    elif kind == "truncated":
        safetensors.torch.save_file({"a": torch.zeros(100)}, path)
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "text":
        path.write_text("weights: none")
    told = {
        "missing": "there is no file",
        "pickle": "is not unpickled",
        "truncated": "is truncated",
        "text": "not a safe",
    }
    result = run("inspect", path)
    assert (result.status, result.out) == (1, "")
    assert told[kind] in result.err
