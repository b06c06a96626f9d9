"""Edits, and their being undone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
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


class Sealed:
    """An object that refuses all but its first value."""

    def __init__(self) -> None:
        vars(self)["size"] = 3

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is sealed")


class HalfOpen:
    """An object that takes a value and raises then."""

    def __init__(self) -> None:
        vars(self)["size"] = 3

    def __setattr__(self, name: str, value: object) -> None:
        vars(self)[name] = value
        if value == 2:
            raise ValueError("two is too few")


def test_what_was_never_set_is_not_undone_and_what_came_before_is() -> None:
    state, sealed = {"m": 1}, Sealed()
    with pytest.raises(AttributeError, match="size is sealed") as caught:
        carry_out([SetItem(state, "m", 5), SetAttr(sealed, "size", 2)])
    assert (state, sealed.size) == ({"m": 1}, 3)
    assert not hasattr(caught.value, "__notes__")


def test_what_was_set_although_it_raised_is_undone() -> None:
    owner = HalfOpen()
    with pytest.raises(ValueError, match="two is too few"):
        carry_out([SetAttr(owner, "size", 2)])
    assert owner.size == 3


def test_an_undo_that_raises_is_noted_and_keeps_no_other_from_being_undone() -> None:
    def fail() -> None:
        raise OSError("gone")

    state, log = {"m": 1}, []
    with pytest.raises(KeyError, match="first") as caught:
        carry_out(
            [
                SetItem(state, "m", 5),
                Do(lambda: None, lambda: log.append("undone")),
                Do(lambda: None, fail),
                Failing(KeyError("first")),
            ]
        )
    assert (state, log) == ({"m": 1}, ["undone"])
    assert caught.value.__notes__ == ["Do could not be undone: OSError: gone"]


def test_a_frozen_dataclass_takes_a_value_and_gives_it_back() -> None:
    @dataclass(frozen=True)
    class Config:
        heads: int = 3

    config = Config()
    carry_out([SetAttr(config, "heads", 2)])
    assert config.heads == 2
    with pytest.raises(RuntimeError):
        carry_out([SetAttr(config, "heads", 1), Failing(RuntimeError("no"))])
    assert config.heads == 2
    with pytest.raises(FrozenInstanceError):
        config.heads = 1
