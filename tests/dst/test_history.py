"""What is reported about masks that change: counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from secateur import InvalidInputError, Masks, ShapeError
from secateur.allocation import uniform
from secateur.dst import SRSTE, History, RigL, Static, overlap
from secateur.masks.bits import Bits
from tests.dst.methods import net, step

FIRST = torch.tensor([[1, 1, 0], [0, 0, 0]], dtype=torch.bool)
SECOND = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=torch.bool)
THIRD = torch.tensor([[0, 0, 1], [0, 0, 1]], dtype=torch.bool)


def bits(mask: torch.Tensor) -> Bits:
    return Bits.of(mask, torch.zeros(mask.shape))


def told() -> History:
    history = History()
    history.add(0, {}, {"w": bits(FIRST)}, ())
    history.add(10, {"w": bits(FIRST).packed}, {"w": bits(SECOND)}, ())
    history.add(20, {"w": bits(SECOND).packed}, {"w": bits(THIRD)}, ("v",))
    return history


def test_numbers_are_those_counted_by_hand() -> None:
    layers = [change.layers["w"] for change in told()]
    assert [layer.num_entries for layer in layers] == [6, 6, 6]
    assert [layer.num_kept for layer in layers] == [2, 2, 2]
    assert [layer.num_grown for layer in layers] == [0, 1, 1]
    assert [layer.num_dropped for layer in layers] == [0, 1, 1]
    assert [layer.num_ever_kept for layer in layers] == [2, 3, 4]
    assert [layer.num_kept_from_start for layer in layers] == [2, 1, 0]
    assert [layer.num_dead_rows for layer in layers] == [1, 1, 0]
    assert [layer.num_dead_columns for layer in layers] == [1, 1, 2]
    assert layers[0].sparsity == 1 - 2 / 6


def test_totals_are_shares_of_all_entries() -> None:
    last = told()[-1]
    assert (last.churn, last.ever_kept, last.overlap_with_start) == (1 / 2, 4 / 6, 0.0)
    assert (last.sparsity, last.num_dead_rows, last.num_dead_columns) == (1 - 2 / 6, 0, 2)
    assert last.unreached == ("v",)


@pytest.mark.parametrize(
    ("mask", "dead"),
    [
        (torch.tensor([True, False, False]), (2, 0)),
        (torch.zeros(4, 3, 2, 2, dtype=torch.bool), (4, 3)),
        (torch.ones(4, 3, 2, 2, dtype=torch.bool), (0, 0)),
        (torch.zeros(0, 3, dtype=torch.bool), (0, 0)),
        (torch.tensor(True), (0, 0)),
    ],
)
def test_dead_positions_are_counted_in_any_shape(mask: torch.Tensor, dead: tuple[int, int]) -> None:
    history = History()
    history.add(0, {}, {"w": bits(mask)}, ())
    assert (history[0].num_dead_rows, history[0].num_dead_columns) == dead


@pytest.mark.parametrize("shape", [(40, 3), (3, 2), (2, 2)], ids=str)
def test_weight_that_was_resized_starts_over(shape: tuple[int, int]) -> None:
    history, all_kept = told(), torch.ones(shape, dtype=torch.bool)
    others = all_kept.clone()
    others[0, 0] = False
    history.add(30, {"w": bits(others).packed}, {"w": bits(all_kept)}, ())
    layer, size = history[-1].layers["w"], all_kept.numel()
    assert (layer.num_ever_kept, layer.num_kept_from_start, layer.num_grown, layer.num_dropped) == (size, size, 1, 0)


def test_state_is_plain_and_goes_on_where_it_stood() -> None:
    state = told().state_dict()
    json.dumps(state["changes"])
    again, whole = History.from_state(state), told()
    for history in (again, whole):
        history.add(30, {"w": bits(THIRD).packed}, {"w": bits(FIRST)}, ())
    assert list(again) == list(whole)
    assert again[-1].layers["w"].num_kept_from_start == 2


def test_scalars_go_to_whatever_takes_them() -> None:
    written = []

    class Recorder:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            written.append((tag, scalar_value, global_step))

    told().write_to(Recorder())
    assert ("masks/churn", 0.5, 20) in written
    assert ("sparsity/w", 1 - 2 / 6, 0) in written
    assert {step for _, _, step in written} == {0, 10, 20}


def test_overlap_is_the_jaccard_index() -> None:
    assert overlap({"w": FIRST}, {"w": SECOND}) == 1 / 3
    assert overlap({"w": FIRST}, {"w": FIRST}) == 1.0
    assert overlap({"w": FIRST}, {"w": ~FIRST}) == 0.0
    assert overlap({}, {}) == 1.0
    layer = torch.nn.Linear(3, 2)
    assert overlap(Masks.from_dict(layer, {"weight": FIRST}), {"weight": THIRD}) == 0.0


def test_masks_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no mask for 'w'"):
        overlap({"w": FIRST}, {"v": FIRST})
    with pytest.raises(ShapeError, match="'w' differ in shape"):
        overlap({"w": FIRST}, {"w": FIRST[0]})


def test_progress_says_where_it_stands() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = RigL(
        model, optimizer, sparsity=0.5, every=2, end_step=4, drop_fraction=lambda step: 1.0, allocation=uniform
    )
    assert training.progress() == (
        "RigL: step 0 of 4, 50.00 % zeros, 0.0 % exchanged, 50.0 % ever kept, next change at 2"
    )
    for _ in range(5):
        step(model, optimizer)
    assert training.progress().startswith("RigL: step 5 of 4, 50.00 % zeros, 100.0 % exchanged, ")
    assert training.progress().endswith(" ever kept, no change to come")
    assert repr(training).splitlines()[1].startswith("Masks: 50 of 100 weights are zero")


def test_a_history_prints_a_line_for_each_change() -> None:
    training = Static(nn.Linear(10, 10), sparsity=0.5)
    assert repr(training.history).splitlines() == [
        "History: 1 entries",
        "  step       0   50.00% zeros    0.0% exchanged",
    ]
    assert training.progress().startswith("Static: step 0, 50.00 % zeros")


def test_a_straight_through_method_prints_its_step_and_its_masks() -> None:
    training = SRSTE(nn.Linear(8, 8), n=2, m=4)
    assert repr(training).startswith("SRSTE: step 0\nMasks: 32 of 64 weights are zero")


@pytest.mark.parametrize(
    "state", [{}, {"changes": 3}, {"changes": [{}]}, {"changes": [], "start": {}, "ever": {}}, None]
)
def test_what_is_no_history_is_refused(state: Any) -> None:
    with pytest.raises(InvalidInputError, match="no state of a history"):
        History.from_state(state)
