"""What can follow, and how it is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from secateur import HolderError, resize_
from secateur.surgery import Change, SetItem, finder, holder
from secateur.surgery.holders import FINDERS, HOLDERS, follow, found_holders


class Shadow:
    """A hand-made average."""

    def __init__(self, model: nn.Module) -> None:
        self.copies = {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture
def _registered() -> Iterator[None]:
    @holder(Shadow)
    def follow_shadow(shadow: Shadow, changes: Sequence[Change]) -> Iterator[SetItem]:
        for change in changes:
            yield SetItem(shadow.copies, change.name, change.take_value(shadow.copies[change.name]))

    yield
    del HOLDERS[Shadow]


@pytest.mark.usefixtures("_registered")
def test_registered_class_follows() -> None:
    layer = nn.Linear(4, 3)
    shadow = Shadow(layer)
    expected = shadow.copies["weight"][:, [0, 2]]
    resize_(layer, "weight", dim=1, keep=[0, 2], ema=shadow)
    assert torch.equal(shadow.copies["weight"], expected)


@pytest.mark.usefixtures("_registered")
def test_subclass_of_a_registered_class_follows() -> None:
    class Mine(Shadow):
        pass

    layer = nn.Linear(4, 3)
    shadow = Mine(layer)
    resize_(layer, "bias", dim=0, keep=[0, 2], ema=[shadow])
    assert shadow.copies["bias"].shape == (2,)


def test_class_that_is_not_registered_is_refused_with_the_way_to_do_it() -> None:
    layer = nn.Linear(4, 3)
    shadow = Shadow(layer)
    with pytest.raises(HolderError, match="Shadow is not a kind of holder that secateur knows") as caught:
        resize_(layer, "weight", dim=1, keep=[0], ema=shadow)
    assert "fix:   register it: @secateur.surgery.holder(Shadow)" in str(caught.value)
    assert caught.match("known: .*LBFGS.*Module.*Optimizer.*dict")
    assert layer.weight.shape == (3, 4)


@pytest.mark.usefixtures("_registered")
def test_finder_leads_to_holders_that_are_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.surgery.holders.FINDERS", FINDERS)
    layer = nn.Linear(4, 3)
    shadow = Shadow(layer)

    def find(tensor: Tensor) -> list[object]:
        return [shadow] if tensor is layer.weight or tensor is layer.bias else []

    finder(find)
    try:
        changes = [Change("weight", layer.weight), Change("bias", layer.bias)]
        found = [(obj, its) for obj, its in found_holders(changes) if obj is shadow]
        resize_(layer, "weight", dim=1, keep=[0, 2])
        resize_(layer, "weight", dim=0, keep=[0, 2], ema=shadow)  # passed and found: it follows once
    finally:
        FINDERS.remove(find)
    assert found == [(shadow, changes)], "once, with both changes"
    assert shadow.copies["weight"].shape == (2, 2)


def test_follow_takes_the_nearest_class() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    try:
        holder(Base)(lambda obj, changes: [])
        holder(Derived)(lambda obj, changes: [SetItem({}, "key", 1)])
        assert follow(Base(), []) == []
        assert len(follow(Derived(), [])) == 1
    finally:
        HOLDERS.pop(Base)
        HOLDERS.pop(Derived)
