"""The plainest way to remove units from a model: slice parameters and buffers, then set the sizes that modules record.

No optimizer, no gradients, no undoing: what the library's own plans do beyond this is not needed to test the analysis.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

import secateur.shrink.attention  # its row in the table of recorded sizes
from secateur.graph.coupling import Coupling
from secateur.graph.heads import can_be_freed, free_heads_
from secateur.graph.provenance import Attribute, PinnedSize
from secateur.graph.trace import named_tensors
from secateur.surgery.change import Change
from secateur.surgery.selection import Selection
from secateur.surgery.sizes import recorded_sizes

assert secateur.shrink.attention


def reasons(coupling: Coupling) -> set[str]:
    """Why positions stay."""
    return set(coupling.solution.why.values())


def units(coupling: Coupling) -> list[int]:
    """All units."""
    return [unit for group in coupling.groups for unit in group.units]


def exact_units(coupling: Coupling) -> list[int]:
    """Units of which zeroing is removing: no op combines positions that depend on them."""
    parents = coupling.solution.parents
    mixed = np.append(coupling.mixed, True)
    while not mixed[parents[mixed[:-1]]].all():
        mixed[parents[mixed[:-1]]] = True
    return [unit for unit in units(coupling) if not mixed[unit]]


def some(coupling: Coupling, among: Iterable[int], seed: int, share: float = 0.3) -> list[int]:
    """Random units, such that at least two positions stay in every dim that has two."""
    chosen: list[int] = []
    order = list(among)
    random.Random(seed).shuffle(order)
    wanted = max(1, round(share * len(order)))
    for unit in order:
        if len(chosen) == wanted:
            break
        kept = coupling.positions([*chosen, unit])
        if all(mask.sum() >= min(2, len(mask)) for mask in kept.values()):
            chosen.append(unit)
    return chosen


def zeroed(model: nn.Module, coupling: Coupling, gone: Iterable[int], keep: Iterable[str] = ()) -> nn.Module:
    """A copy whose parameters are zero at the positions that go; parameters named in `keep` are left alone."""
    twin = copy.deepcopy(model)
    tensors = named_tensors(twin)
    with torch.no_grad():
        for (name, dim), kept in coupling.positions(gone).items():
            if name in coupling.parameters and not any(part in name for part in keep):
                tensors[name].index_fill_(dim, torch.from_numpy(np.nonzero(~kept)[0]), 0.0)
    return twin


def cut_(model: nn.Module, coupling: Coupling, gone: Iterable[int]) -> None:
    """Remove the units from the model that was analysed."""
    gone = list(gone)
    for module in model.modules():
        if can_be_freed(module):
            free_heads_(module)
    tensors = named_tensors(model)
    numbers = _numbers(coupling, gone)
    changes: dict[int, Change] = {}
    for (name, dim), kept in coupling.positions(gone).items():
        keep = torch.from_numpy(np.nonzero(kept)[0])
        tensor = tensors[name]
        before = changes.get(id(tensor), Change(name, tensor))
        changes[id(tensor)] = Change(name, tensor, (*before.selections, Selection(dim, tensor.shape[dim], keep)))
    sizes = [(module, recorded_sizes(module, changes)) for module in model.modules()]
    for change in changes.values():
        change.tensor.data = change.take(change.tensor.data)
    for module, attributes in sizes:
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
    for number, value in numbers:
        _store(number, value)


def _numbers(coupling: Coupling, gone: list[int]) -> list[tuple[Attribute, int]]:
    """New values of numbers in the code."""
    pinned = coupling.sizing.pinned
    return [
        (number, PinnedSize(value, number.value) if number in pinned else value)
        for number, value in coupling.attributes(gone).items()
    ]


def _store(number: Attribute, value: int) -> None:
    """Put a number where it is stored."""
    owner = vars(number.owner)
    if number.index is None:
        owner[number.name] = value
    else:
        entries = list(owner[number.name])
        entries[number.index] = value
        owner[number.name] = type(owner[number.name])(entries)
