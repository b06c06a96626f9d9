"""Tickets: masks and a start, on the model they come from, on a fresh one, from a file, with another initialisation."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import HolderError, InvalidInputError, Masks, ShapeError, UnsupportedError, prune_
from secateur.tickets import Snapshot, Ticket
from tests.masks.oracles import bits, halves, is_zero, snapshot
from tests.tickets.models import Normed, train, values


def found_ticket() -> tuple[Normed, Ticket, dict[str, Tensor]]:
    """A trained model with masks, its ticket, and the masks."""
    model = Normed()
    start = Snapshot.of(model)
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(3))
    masks = halves(model)
    Masks.from_dict(model, masks)
    return model, Ticket.of(model, start), masks


def expected(start: Snapshot, masks: dict[str, Tensor]) -> dict[str, bytes]:
    """The start with masked entries set to zero by hand."""
    return {
        name: bits(value.masked_fill(~masks[name], 0.0) if name in masks else value)
        for name, value in start.parameters.items()
    }


@pytest.mark.parametrize("through_file", [False, True])
def test_ticket_on_a_fresh_model_trains_like_one_that_was_masked_at_the_start(
    through_file: bool, tmp_path: Path
) -> None:
    _, ticket, masks = found_ticket()
    if through_file:
        ticket.save(tmp_path / "ticket")
        ticket = Ticket.load(tmp_path / "ticket")
    fresh, reference = Normed(), Normed()
    optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)
    train(fresh, optimizer, range(5, 7))
    put = ticket.apply_(fresh, optimizer, buffers=True)
    assert {name: bits(p) for name, p in fresh.named_parameters()} == expected(ticket.snapshot, masks)
    assert all(torch.equal(put[name], mask) for name, mask in masks.items())
    reference.load_state_dict({**ticket.snapshot.parameters, **ticket.snapshot.buffers})
    Masks.from_dict(reference, masks)
    train(fresh, optimizer, range(3))
    train(reference, torch.optim.Adam(reference.parameters(), lr=0.01), range(3))
    assert values(fresh) == values(reference)
    assert all(is_zero(fresh.get_parameter(name).detach()[~mask]) for name, mask in masks.items())


def test_new_initialisation_keeps_its_own_values_under_the_same_mask() -> None:
    _, ticket, masks = found_ticket()
    fresh = Normed()
    own = Snapshot.of(fresh)
    ticket.apply_(fresh, rewind=False)
    assert {name: bits(p) for name, p in fresh.named_parameters()} == expected(own, masks)


def test_ticket_does_not_change_with_the_model_that_it_comes_from() -> None:
    model, ticket, masks = found_ticket()
    start = {name: bits(value) for name, value in ticket.snapshot.parameters.items()}
    Masks(model).update_({"head.weight": torch.zeros(3, 6, dtype=torch.bool)})
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(2))
    assert all(torch.equal(ticket.masks[name], mask) for name, mask in masks.items())
    assert {name: bits(value) for name, value in ticket.snapshot.parameters.items()} == start


def test_masks_that_are_not_in_the_ticket_are_gone() -> None:
    _, ticket, masks = found_ticket()
    other = Normed()
    Masks.from_dict(
        other, {"head.bias": torch.tensor([True, False, True]), "head.weight": halves(other)["head.weight"]}
    )
    put = ticket.apply_(other)
    assert list(put) == list(masks)
    assert bits(other.head.bias) == bits(ticket.snapshot.parameters["head.bias"])


def test_sparsity_and_text_of_a_ticket() -> None:
    layer = nn.Linear(4, 2)
    start = Snapshot.of(layer, step=3)
    prune_(layer, sparsity=0.75)
    ticket = Ticket.of(layer, start)
    assert ticket.sparsity() == 0.75
    assert repr(ticket) == (
        "Ticket: 75.00% of 1 tensors are zero; Snapshot: 2 parameters, 0 buffers, 0 optimizers at step 3"
    )


def test_ticket_of_a_model_without_masks_or_of_another_model_is_refused() -> None:
    model = Normed()
    with pytest.raises(InvalidInputError, match="has no masks to make a ticket of"):
        Ticket.of(model, Snapshot.of(model))
    prune_(model, sparsity=0.5)
    with pytest.raises(ShapeError, match="another architecture"):
        Ticket.of(model, Snapshot.of(nn.Linear(2, 2)))


@pytest.mark.parametrize("rewind", [False, True])
def test_model_of_another_architecture_is_refused_before_anything_changes(rewind: bool) -> None:
    _, ticket, _ = found_ticket()
    other = Normed()
    other.head = nn.Linear(6, 5)
    optimizer = torch.optim.Adam(other.parameters())
    before = snapshot(other, optimizer)
    with pytest.raises(ShapeError, match=r"head\.weight"):
        ticket.apply_(other, optimizer, rewind=rewind)
    assert snapshot(other, optimizer) == before


def test_optimizer_of_another_model_is_refused_before_anything_changes() -> None:
    _, ticket, _ = found_ticket()
    fresh = Normed()
    before = snapshot(fresh)
    with pytest.raises(HolderError, match="made for another model"):
        ticket.apply_(fresh, torch.optim.Adam(Normed().parameters()))
    assert snapshot(fresh) == before


def test_parameter_that_cannot_be_rewound_is_refused_before_anything_changes() -> None:
    _, ticket, _ = found_ticket()
    fresh = Normed()
    with torch.inference_mode():
        fresh.head.bias = nn.Parameter(torch.zeros(3))
    before = snapshot(fresh)
    with pytest.raises(UnsupportedError, match=r"cannot rewind 'head\.bias'"):
        ticket.apply_(fresh)
    assert snapshot(fresh) == before


def test_optimizers_may_come_from_an_iterator() -> None:
    model, ticket, _ = found_ticket()
    optimizers = [torch.optim.Adam(part.parameters()) for part in (model.conv, model.norm, model.head)]
    for optimizer in optimizers:
        train(model, optimizer, range(1))
    ticket.apply_(model, iter(optimizers))
    assert [dict(optimizer.state) for optimizer in optimizers] == [{}, {}, {}]


def test_damaged_file_is_no_ticket(tmp_path: Path) -> None:
    _, ticket, _ = found_ticket()
    ticket.save(tmp_path / "ticket")
    tensors = safetensors.torch.load_file(tmp_path / "ticket")
    with safetensors.safe_open(tmp_path / "ticket", "pt") as file:
        header = file.metadata()
    del tensors["parameters.head.bias"]
    safetensors.torch.save_file(tensors, tmp_path / "ticket", header)
    with pytest.raises(InvalidInputError, match=r"ticket is damaged[\s\S]*head\.bias"):
        Ticket.load(tmp_path / "ticket")


def test_snapshot_file_is_no_ticket(tmp_path: Path) -> None:
    Snapshot.of(nn.Linear(2, 2)).save(tmp_path / "snapshot")
    with pytest.raises(InvalidInputError, match=r"not a file of the kind secateur\.ticket\.1[\s\S]*Ticket\.save"):
        Ticket.load(tmp_path / "snapshot")
