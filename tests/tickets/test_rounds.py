"""Iterative magnitude pruning: each round prunes what the round before has trained, and starts from the snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError, Masks, ShapeError, allocation, patterns, prune_, scores
from secateur.tickets import Round, Snapshot, geometric, imp_, rewind_, rewind_learning_rate_
from tests.masks.oracles import bits, is_zero, snapshot
from tests.tickets.models import Normed, train, values

WEIGHTS = ("conv.weight", "head.weight")


def train_anew(model: nn.Module) -> None:
    """Three steps of an optimizer of its own."""
    train(model, torch.optim.Adam(model.parameters(), lr=0.05), range(3))


def by_hand(model: nn.Module, sparsities: Sequence[float]) -> list[dict[str, Tensor]]:
    """The masks of each round, in plain torch: sort magnitudes tensor by tensor, rewind, zero after each step."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    masks = {name: torch.ones_like(start[name], dtype=torch.bool) for name in WEIGHTS}
    found = []

    def zero(*_: object) -> None:
        with torch.no_grad():
            for name, mask in masks.items():
                model.get_parameter(name)[~mask] = 0.0

    for sparsity in sparsities:
        for name in WEIGHTS:
            magnitude = model.get_parameter(name).detach().abs().flatten()
            gone = magnitude.sort(stable=True).indices[: round(sparsity * len(magnitude))]
            masks[name] = torch.ones(len(magnitude), dtype=torch.bool).index_fill(0, gone, False)
            masks[name] = masks[name].view_as(start[name])
        with torch.no_grad():
            for name, value in start.items():
                model.get_parameter(name).copy_(value)
        zero()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        optimizer.register_step_post_hook(zero)
        train(model, optimizer, range(3))
        found.append(dict(masks))
    return found


def test_rounds_are_those_of_iterative_magnitude_pruning_by_hand() -> None:
    model, reference = Normed(), Normed()
    reference.load_state_dict(model.state_dict())
    sparsities = geometric(0.9, rounds=4)
    rounds = imp_(model, train_anew, sparsities=sparsities)
    wanted = by_hand(reference, sparsities)
    for done, masks in zip(rounds, wanted, strict=True):
        assert all(torch.equal(done.ticket.masks[name], mask) for name, mask in masks.items())
    assert {n: bits(p) for n, p in model.named_parameters()} == {n: bits(p) for n, p in reference.named_parameters()}


def test_history_is_plain_data() -> None:
    model = nn.Linear(10, 4)
    rounds = imp_(model, lambda model: {"accuracy": 0.5}, sparsities=[0.0, 0.5])
    assert json.loads(json.dumps([done.as_dict() for done in rounds])) == [
        {"number": 0, "sparsity": 0.0, "zeros": {"weight": 0}, "result": {"accuracy": 0.5}},
        {"number": 1, "sparsity": 0.5, "zeros": {"weight": 20}, "result": {"accuracy": 0.5}},
    ]


def test_each_training_starts_from_the_snapshot_under_its_mask() -> None:
    model = Normed()
    train_anew(model)
    start = Snapshot.of(model, step=3)
    started: list[dict[str, bytes]] = []

    def watched(model: nn.Module) -> None:
        started.append({name: bits(p) for name, p in model.named_parameters()})
        train_anew(model)

    rounds = imp_(model, watched, sparsities=[0.0, 0.4, 0.8])
    for done, values_then in zip(rounds, started, strict=True):
        masks = done.ticket.masks
        assert values_then == {
            name: bits(value.masked_fill(~masks[name], 0.0) if name in masks else value)
            for name, value in start.parameters.items()
        }


def test_snapshot_of_one_s_own_resumes_rounds_that_were_interrupted() -> None:
    whole, first = Normed(), Normed()
    first.load_state_dict(whole.state_dict())
    start = Snapshot.of(first)
    expected = imp_(whole, train_anew, sparsities=[0.0, 0.5, 0.75])[-1]
    imp_(first, train_anew, sparsities=[0.0, 0.5])
    resumed = Normed()
    resumed.load_state_dict(first.state_dict())
    Masks(resumed).load_state_dict(Masks(first).state_dict())
    last = imp_(resumed, train_anew, sparsities=[0.75], snapshot=start)[-1]
    assert all(torch.equal(last.ticket.masks[name], mask) for name, mask in expected.ticket.masks.items())
    assert {n: bits(p) for n, p in resumed.named_parameters()} == {n: bits(p) for n, p in whole.named_parameters()}


def test_one_optimizer_through_all_rounds_equals_one_for_each() -> None:
    one, other = Normed(), Normed()
    other.load_state_dict(one.state_dict())
    optimizer = torch.optim.Adam(one.parameters(), lr=0.05)
    rewind = partial(rewind_, optimizer=optimizer, buffers=True)
    imp_(one, lambda model: train(model, optimizer, range(3)), sparsities=[0.0, 0.5], rewind=rewind)
    imp_(other, train_anew, sparsities=[0.0, 0.5], rewind=partial(rewind_, buffers=True))
    assert values(one) == values(other)


def test_learning_rate_rewinding_leaves_kept_weights_where_they_were() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    start = Snapshot.of(model, optimizer, scheduler=scheduler)
    seen: list[tuple[float, Tensor]] = []

    def watched(model: nn.Module) -> None:
        seen.append((optimizer.param_groups[0]["lr"], model.head.weight.detach().clone()))
        train(model, optimizer, range(2))
        scheduler.step()
        seen.append((optimizer.param_groups[0]["lr"], model.head.weight.detach().clone()))

    def back(model: nn.Module, snapshot: Snapshot) -> None:
        rewind_learning_rate_(snapshot, optimizer, scheduler)

    rounds = imp_(model, watched, sparsities=[0.0, 0.5], snapshot=start, rewind=back)
    assert [rate for rate, _ in seen] == pytest.approx([0.1, 0.01, 0.1, 0.01])
    mask = rounds[1].ticket.masks["head.weight"]
    assert bits(seen[2][1]) == bits(seen[1][1].masked_fill(~mask, 0.0))


@pytest.mark.parametrize("score", [scores.magnitude, partial(scores.random, seed=3)], ids=["magnitude", "random"])
@pytest.mark.parametrize("allocate", [allocation.uniform, allocation.global_, allocation.erk], ids=lambda f: f.__name__)
@pytest.mark.parametrize("pattern", [patterns.Unstructured(), patterns.Channel(dim=1)], ids=repr)
def test_zeros_only_grow_with_any_score_allocation_and_pattern(score, allocate, pattern) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
    rounds = imp_(model, lambda _: None, sparsities=[0.0, 0.25, 0.5], score=score, allocation=allocate, pattern=pattern)
    masks = [done.ticket.masks for done in rounds]
    assert rounds[0].sparsity == 0.0
    for before, after in pairwise(masks):
        assert all(not bool((after[name] & ~before[name]).any()) for name in after)
    assert [sum(done.zeros.values()) for done in rounds] == [
        sum(int((~mask).sum()) for mask in each.values()) for each in masks
    ]
    assert rounds[-1].sparsity > rounds[1].sparsity > 0.0
    assert all(is_zero(model.get_parameter(name).detach()[~mask]) for name, mask in masks[-1].items())


def test_rounds_are_reported_as_soon_as_they_are_trained() -> None:
    told: list[object] = []

    def note(done: Round) -> None:
        told.append(done.number)

    imp_(
        nn.Linear(10, 4),
        lambda model: told.append("trained"),
        sparsities=[0.0, 0.5],
        after_round=note,
    )
    assert told == ["trained", 0, "trained", 1]


def test_selectors_may_come_from_an_iterator() -> None:
    model = Normed()
    rounds = imp_(
        model, lambda _: None, sparsities=[0.0, 0.5, 0.75], include=iter(["*.weight"]), exclude=iter(["norm.*"])
    )
    assert [list(each.zeros) for each in rounds] == [["conv.weight", "head.weight"]] * 3


def test_zeros_from_before_stay() -> None:
    model = nn.Linear(10, 4)
    before = prune_(model, sparsity=0.5, score=partial(scores.random, seed=1))["weight"]
    rounds = imp_(model, lambda _: None, sparsities=[0.5, 0.75])
    assert torch.equal(rounds[0].ticket.masks["weight"], before)


# ---- sparsities


@given(st.floats(0, 0.999), st.integers(1, 30))
def test_geometric_sparsities_leave_the_same_fraction_each_time(sparsity: float, rounds: int) -> None:
    found = geometric(sparsity, rounds)
    assert len(found) == rounds + 1
    assert (found[0], found[-1]) == (0.0, sparsity)
    assert found == sorted(found)
    left = (1 - sparsity) ** (1 / rounds)
    for one, other in pairwise(found):
        assert (1 - other) / (1 - one) == pytest.approx(left, rel=1e-9)


@pytest.mark.parametrize("rounds", [0, -1, 2.0, "3"])
def test_number_of_rounds_must_be_a_whole_number(rounds: int) -> None:
    with pytest.raises(InvalidInputError, match="rounds is the number of prunings"):
        geometric(0.5, rounds)


@pytest.mark.parametrize("sparsity", [1.0, -0.1, float("nan"), "0.5"])
def test_sparsity_out_of_range_is_refused(sparsity: float) -> None:
    with pytest.raises(InvalidInputError, match=r"in \[0, 1\)"):
        geometric(sparsity, 3)


# ---- what is refused


def test_rounds_that_cannot_be_carried_out_are_refused_before_any_training() -> None:
    model = Normed()
    before = snapshot(model)

    def never(model: nn.Module) -> None:
        raise AssertionError("trained")

    with pytest.raises(InvalidInputError, match=r"may only rise[\s\S]*from 0\.5 to 0\.4"):
        imp_(model, never, sparsities=[0.0, 0.5, 0.4])
    with pytest.raises(InvalidInputError, match=r"in \[0, 1\)"):
        imp_(model, never, sparsities=[0.0, 1.0])
    for sparsities in ([], 0.5):
        with pytest.raises(InvalidInputError, match=r"one number for each training[\s\S]*geometric"):
            imp_(model, never, sparsities=sparsities)
    for arguments in ({"train": 10}, {"rewind": None}, {"after_round": "print"}):
        with pytest.raises(InvalidInputError, match=rf"{next(iter(arguments))}= is a function[\s\S]*fix"):
            imp_(model, **{"train": never, "sparsities": [0.5], **arguments})
    with pytest.raises(InvalidInputError, match="call it first"):
        imp_(model, never, sparsities=[0.5], score=scores.snip)
    with pytest.raises(ShapeError, match="another architecture"):
        imp_(model, never, sparsities=[0.5], snapshot=Snapshot.of(nn.Linear(2, 2)))
    with pytest.raises(InvalidInputError, match="no snapshot to rewind to"):
        imp_(model, never, sparsities=[0.5], snapshot=model.state_dict())
    assert snapshot(model) == before
