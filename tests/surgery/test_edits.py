"""Edits, and their being undone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from secateur.surgery.edits import Do, SetAttr, SetItem, SetValue, carry_out


class Failing:
    """An edit that fails after some others."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.was_undone = error, False

    def do(self) -> None:
        raise self.error

    def undo(self) -> None:
        self.was_undone = True


def test_edits_are_done_in_order() -> None:
    owner, state, tensor, log = SimpleNamespace(size=3), {"m": 1}, torch.zeros(2), []
    carry_out(
        [
            SetAttr(owner, "size", 2),
            SetItem(state, "m", 5),
            SetValue(tensor, torch.ones(2)),
            Do(lambda: log.append((owner.size, state["m"], tensor.tolist()))),
        ]
    )
    assert log == [(2, 5, [1.0, 1.0])]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_failure_undoes_everything_in_reverse(error: BaseException) -> None:
    owner, log = SimpleNamespace(size=3), []
    state, tensor, failing = {"m": "old"}, torch.tensor([1.0, 2.0]), Failing(error)
    edits = [
        SetAttr(owner, "size", 2),
        SetItem(state, "m", "new"),
        SetValue(tensor, torch.zeros(2)),
        Do(lambda: log.append("done"), lambda: log.append((owner.size, state["m"], tensor.tolist()))),
        failing,
        Do(lambda: log.append("never")),
    ]
    with pytest.raises(type(error)):
        carry_out(edits)
    assert failing.was_undone
    assert log == ["done", (2, "new", [0.0, 0.0])]
    assert (owner.size, state, tensor.tolist()) == (3, {"m": "old"}, [1.0, 2.0])


def test_undo_of_what_was_never_done_changes_nothing() -> None:
    owner, state, tensor = SimpleNamespace(size=3), {"m": 1}, torch.ones(1)
    SetAttr(owner, "size", 2).undo()
    SetItem(state, "m", 5).undo()
    SetValue(tensor, torch.zeros(1)).undo()
    Do(lambda: None).undo()
    assert (owner.size, state, tensor.tolist()) == (3, {"m": 1}, [1.0])


def test_first_edit_that_fails_on_a_missing_key_leaves_the_rest() -> None:
    state: dict[str, int] = {}
    with pytest.raises(KeyError):
        carry_out([SetItem(state, "m", 1)])
    assert state == {}


def test_set_value_writes_leaves_that_require_a_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    carry_out([SetValue(weight, torch.zeros(2))])
    assert weight.tolist() == [0.0, 0.0]
    assert weight.requires_grad
