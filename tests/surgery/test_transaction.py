"""Several changes at once: all or none."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from secateur import InvalidInputError, SecateurError, ShapeError, StaleGraphError, transaction
from secateur.surgery import Do, SetAttr, holder
from secateur.surgery.holders import HOLDERS
from secateur.surgery.selection import Selection
from secateur.surgery.storage import Replace


class Net(nn.Module):
    """A little of everything that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(6)
        self.mid = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        self.lstm = nn.LSTM(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.head(self.lstm(self.mid(x).unsqueeze(0))[0][0])


CHANNELS, FEATURES = [0, 2, 3, 5], [1, 2, 4]
KEEPS = {
    ("conv.weight", 0): CHANNELS,
    ("conv.bias", 0): CHANNELS,
    ("norm.weight", 0): CHANNELS,
    ("norm.bias", 0): CHANNELS,
    ("mid.weight", 1): CHANNELS,
    ("mid.weight", 0): FEATURES,
    ("mid.bias", 0): FEATURES,
    ("lstm.weight_ih_l0", 1): FEATURES,
}


class Setup:
    """A model in mid-training with everything that refers to it, and half of the next gradient accumulated."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), amsgrad=True)
        self.ema = AveragedModel(self.model)
        self.shadow = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(self.x()).square().mean().backward()
            self.optimizer.step()
            self.ema.update_parameters(self.model)
        self.model(self.x()).square().mean().backward()

    def x(self) -> Tensor:
        return torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)

    def shrink(self, also: object = None) -> None:
        ema = [self.ema, self.shadow, *([] if also is None else [also])]
        with transaction(self.model, self.optimizer, ema) as t:
            for (name, dim), keep in KEEPS.items():
                t.resize(name, dim=dim, keep=keep)

    def snapshot(self) -> dict[str, Any]:
        """Every tensor and number there is, as values that can be compared."""
        found: dict[str, Any] = {}
        for root, module in (("model", self.model), ("ema", self.ema)):
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                found[f"{root} {name}"] = (id(tensor), tensor.stride(), tensor.tolist(), tensor.requires_grad)
                found[f"{root} {name} grad"] = None if tensor.grad is None else tensor.grad.tolist()
            found |= {f"{root} {name} repr": repr(child) for name, child in module.named_modules()}
        for name, p in self.model.named_parameters():
            state = self.optimizer.state[p]
            found |= {f"state {name} {key}": (id(value), value.tolist()) for key, value in state.items()}
        return found | {f"shadow {name}": value.tolist() for name, value in self.shadow.items()}

    def check_trains(self) -> None:
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(self.x()).square().mean().backward()
            self.optimizer.step()
            self.ema.update_parameters(self.model)


def test_all_changes_happen_together() -> None:
    setup = Setup()
    setup.shrink()
    shapes = {name: tuple(p.shape) for name, p in setup.model.named_parameters()}
    assert shapes["conv.weight"] == (4, 3, 3, 3)
    assert shapes["norm.bias"] == (4,)
    assert shapes["mid.parametrizations.weight.original0"] == (3, 1)
    assert shapes["mid.parametrizations.weight.original1"] == (3, 4)
    assert shapes["lstm.weight_ih_l0"] == (16, 3)
    assert {name: tuple(p.shape) for name, p in setup.ema.module.named_parameters()} == shapes
    assert {name: tuple(value.shape) for name, value in setup.shadow.items()} == shapes
    assert {name: tuple(p.grad.shape) for name, p in setup.model.named_parameters()} == shapes
    for name, p in setup.model.named_parameters():
        state = setup.optimizer.state[p]
        assert all(tuple(state[key].shape) == shapes[name] for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    setup.check_trains()


@pytest.mark.parametrize("nth", [0, 1, 7, 15, 30])
def test_running_out_of_memory_while_building_changes_nothing(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    setup = Setup()
    before = setup.snapshot()
    calls, take = [], Selection._take_dense

    def take_or_fail(self: Selection, *args: Any) -> Tensor:
        calls.append(1)
        if len(calls) > nth:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return take(self, *args)

    monkeypatch.setattr(Selection, "_take_dense", take_or_fail)
    with pytest.raises(torch.OutOfMemoryError, match="simulated"):
        setup.shrink()
    monkeypatch.undo()
    assert setup.snapshot() == before
    setup.check_trains()


@pytest.mark.parametrize("nth", range(0, 40, 3))
def test_failure_in_the_middle_of_a_commit_is_undone(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    setup = Setup()
    before = setup.snapshot()
    module = sys.modules["secateur.surgery.transaction"]
    carry_out = module.carry_out

    def carry_out_or_fail(edits: list[Any]) -> None:
        assert len(edits) > nth
        carry_out([*edits[: nth + 1], Failing(), *edits[nth + 1 :]])

    monkeypatch.setattr(module, "carry_out", carry_out_or_fail)
    with pytest.raises(KeyboardInterrupt):
        setup.shrink()
    monkeypatch.undo()
    assert setup.snapshot() == before
    setup.check_trains()


class Failing:
    """An edit that fails, as a user's own may, or at a keystroke."""

    def do(self) -> None:
        raise KeyboardInterrupt

    def undo(self) -> None:
        pass


def test_failure_half_way_through_a_tensor_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    before = setup.snapshot()
    calls = []
    storage = sys.modules["secateur.surgery.storage"]
    increment = storage.increment_version

    def fail_once(tensor: Tensor) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise MemoryError
        increment(tensor)

    monkeypatch.setattr(storage, "increment_version", fail_once)
    with pytest.raises(MemoryError):
        setup.shrink()
    assert setup.snapshot() == before


def test_old_graph_still_works_after_a_failed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 4)
    loss = layer(torch.ones(1, 3)).sum()  # saves no weight, as its input wants no gradient
    monkeypatch.setattr(Replace, "do", lambda self: Failing().do())
    with pytest.raises(KeyboardInterrupt):
        _resize(layer, {("weight", 1): [0]})
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (4, 3)


class Stubborn:
    """A holder that cannot follow."""


def test_holder_that_raises_stops_everything() -> None:
    @holder(Stubborn)
    def refuse(obj: Stubborn, changes: object) -> list[Any]:
        raise ValueError("never")

    setup = Setup()
    before = setup.snapshot()
    try:
        with pytest.raises(ValueError, match="never"):
            setup.shrink(also=Stubborn())
    finally:
        del HOLDERS[Stubborn]
    assert setup.snapshot() == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.resize("conv.weight", dim=0, keep=[99]), "outside the dim"),
        (lambda t: t.resize("conv.bias", dim=0, keep=[]), "is empty"),
        (lambda t: t.resize("nothing", dim=0, keep=[0]), "no parameter or buffer 'nothing'"),
        (lambda t: t.grow("conv.weight", dim=1, size=1), "must be larger"),
        (lambda t: 1 / 0, "division by zero"),
    ],
    ids=["index", "empty", "name", "size", "the user's own"],
)
def test_error_inside_the_block_changes_nothing(spoil: Callable[[Any], object], message: str) -> None:
    setup = Setup()
    before = setup.snapshot()
    with pytest.raises((SecateurError, ZeroDivisionError), match=message):
        _spoiled(setup, spoil)
    assert setup.snapshot() == before


def _spoiled(setup: Setup, spoil: Callable[[Any], object]) -> None:
    with transaction(setup.model, setup.optimizer, [setup.ema, setup.shadow]) as t:
        t.resize("head.weight", dim=0, keep=[0])
        spoil(t)


def _resize(module: nn.Module, keeps: dict[tuple[str, int], Any], **holders: object) -> None:
    with transaction(module, **holders) as t:
        for (name, dim), keep in keeps.items():
            t.resize(name, dim=dim, keep=keep)


def test_positions_refer_to_the_shape_before_the_transaction() -> None:
    layer = nn.Linear(4, 4)
    expected = layer.weight.detach()[[0, 3]][:, [1, 3]]
    mask = torch.tensor([False, True, False, True])
    _resize(layer, {("weight", 0): [0, 3], ("weight", 1): mask, ("bias", 0): [0, 3]})
    assert torch.equal(layer.weight.detach(), expected)


def test_tied_tensor_may_be_named_by_all_its_names() -> None:
    model = nn.ModuleDict({"emb": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["emb"].weight
    _resize(model, {("emb.weight", 0): [0, 2, 5], ("head.weight", 0): [0, 2, 5]})
    assert model["emb"].weight is model["head"].weight
    assert model["emb"].weight.shape == (3, 4)


def test_same_dim_in_two_ways_is_refused() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(InvalidInputError, match="'weight' is asked to change along dim 1 in two different ways"):
        _resize(layer, {("weight", 1): [0, 1], ("weight", -1): [0, 2]})
    assert layer.weight.shape == (4, 4)


def test_growth_of_two_dims_fills_the_corner_with_the_second() -> None:
    layer = nn.Linear(2, 2, bias=False)
    with transaction(layer) as t:
        t.grow("weight", dim=0, size=3, init=torch.full((1, 2), 5.0))
        t.grow("weight", dim=1, size=3, init=torch.full((3, 1), 7.0))
    assert layer.weight[2].tolist() == [5.0, 5.0, 7.0]
    assert layer.weight[:, 2].tolist() == [7.0, 7.0, 7.0]


def test_shrinking_and_growing_go_together() -> None:
    layer = nn.Linear(3, 2, bias=False)
    expected = torch.cat([layer.weight.detach()[:, [0, 2]], torch.ones(2, 2)])
    with transaction(layer) as t:
        t.resize("weight", dim=1, keep=[0, 2])
        t.grow("weight", dim=0, size=4, init=nn.init.ones_)
    assert torch.equal(layer.weight.detach(), expected)


def test_transaction_can_be_committed_by_hand_and_used_again() -> None:
    layer = nn.Linear(6, 2)
    surgery = transaction(layer)
    surgery.resize("weight", dim=1, keep=range(4))
    surgery.commit()
    surgery.commit()
    assert layer.in_features == 4
    with surgery:
        surgery.resize("weight", dim=1, keep=range(2))
    assert layer.in_features == 2


def test_transaction_forgets_what_a_failed_block_asked() -> None:
    layer = nn.Linear(6, 2)
    surgery = transaction(layer)
    with pytest.raises(ZeroDivisionError):
        _fail_in(surgery)
    with surgery:
        surgery.resize("bias", dim=0, keep=[0])
    assert layer.weight.shape == (2, 6)
    assert layer.bias.shape == (1,)


def _fail_in(surgery: Any) -> None:
    with surgery as t:
        t.resize("weight", dim=1, keep=range(4))
        _ = 1 / 0


def test_transactions_inside_one_another_are_refused_where_they_meet() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    outer = transaction(model)
    outer.resize("0.weight", dim=1, keep=range(4))
    outer.resize("1.weight", dim=0, keep=range(1))
    _resize(model, {("0.weight", 1): range(5)})
    with pytest.raises(InvalidInputError, match=r"'0\.weight' has changed its shape since it was named"):
        outer.commit()
    assert (model[0].in_features, model[1].weight.shape) == (5, (2, 6))


def test_parameter_that_is_replaced_during_a_transaction_is_refused() -> None:
    layer = nn.Linear(6, 2)
    surgery = transaction(layer)
    layer.weight = nn.Parameter(torch.ones(2, 6))
    with pytest.raises(InvalidInputError, match="'weight' was replaced while a transaction was open"):
        surgery.resize("weight", dim=1, keep=[0])
    surgery = transaction(layer)
    surgery.resize("weight", dim=1, keep=[0])
    layer.weight = nn.Parameter(torch.ones(2, 6))
    with pytest.raises(InvalidInputError, match="'weight' was replaced while"):
        surgery.commit()
    assert layer.weight.shape == (2, 6)


def test_empty_transaction_does_nothing() -> None:
    layer = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with transaction(layer, optimizer):
        pass
    assert layer.weight.shape == (2, 6)


def test_gradient_of_another_shape_is_refused() -> None:
    layer = nn.Linear(6, 2)
    layer(torch.ones(1, 6)).sum().backward()
    layer.weight.data = layer.weight.data[:, :4]
    with pytest.raises(ShapeError, match="its gradient has another shape") as caught:
        _resize(layer, {("weight", 1): [0]})
    assert "shape: (2, 4)    grad: (2, 6)" in str(caught.value)
    assert layer.weight.shape == (2, 4)


def test_old_graph_names_every_resized_parameter() -> None:
    setup = Setup()
    loss = setup.model(setup.x()).sum()
    setup.shrink()
    with pytest.raises(StaleGraphError) as caught:
        loss.backward()
    assert "'conv.weight' (6, 3, 3, 3) -> (4, 3, 3, 3)" in str(caught.value)
    assert setup.model.head.weight.grad is not None, "half a gradient is still there, and nothing was added to it"


def test_further_edits_are_done_with_the_others_and_once() -> None:
    setup = Setup()
    setup.model.width, log = 6, []
    with transaction(setup.model, setup.optimizer, [setup.ema, setup.shadow]) as t:
        t.resize("head.weight", dim=0, keep=[0])
        t.also(SetAttr(setup.model, "width", 4))
        t.also(Do(lambda: log.append(tuple(setup.model.head.weight.shape))))
        t.commit()
    assert setup.model.width == 4
    assert log == [(1, 4)]


def test_further_edits_are_undone_with_the_others() -> None:
    setup = Setup()
    setup.model.width = 6
    before = setup.snapshot()
    with pytest.raises(KeyboardInterrupt):
        _with_failing_edit(setup)
    assert setup.snapshot() == before
    assert setup.model.width == 6


def _with_failing_edit(setup: Setup) -> None:
    with transaction(setup.model, setup.optimizer, [setup.ema, setup.shadow]) as t:
        t.resize("head.weight", dim=0, keep=[0])
        t.also(SetAttr(setup.model, "width", 4))
        t.also(Failing())


def test_further_edits_alone_are_done_too() -> None:
    layer = nn.Linear(2, 2)
    with transaction(layer) as t:
        t.also(SetAttr(layer, "in_features", 3))
    assert layer.in_features == 3


def test_many_parameters_take_well_under_a_second() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(500)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    start = time.process_time()
    with transaction(model, optimizer) as t:
        for i in range(500):
            t.resize(f"{i}.weight", dim=0, keep=range(6))
            t.resize(f"{i}.weight", dim=1, keep=range(6))
            t.resize(f"{i}.bias", dim=0, keep=range(6))
    assert time.process_time() - start < 3.0, "1000 parameters take some tenths of a second"
    assert copy.deepcopy(model)(torch.ones(1, 6)).shape == (1, 6)
