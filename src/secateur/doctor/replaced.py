"""Which tensor in the optimizer a new parameter has replaced: by name, memory, values, place in the order, or shape."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor, nn

from secateur.doctor.origins import Kind, Origin, derive, relation
from secateur.doctor.setup import Setup, Slot
from secateur.surgery import Selection

__all__ = ["Link", "by_name", "by_order", "by_shape", "by_values", "extend", "with_siblings"]


@dataclass(frozen=True, eq=False)
class Link:
    """A parameter that no optimizer holds, and the place in an optimizer that holds what it has replaced.

    Args:
        name: First dotted name of the parameter.
        live: The parameter that the model has now.
        slot: Where the optimizer holds the old one.
        by: What the match rests on.
        origin: How the new one came from the old one.
    """

    name: str
    live: Tensor
    slot: Slot
    by: str
    origin: Origin


Search = Callable[[Setup, Sequence[Slot], Mapping[str, Tensor], Mapping[Slot, Link]], Iterable[Link]]
"""(setup, slots still open, parameters still free, what is matched already) -> more matches."""


def extend(setup: Setup, free: dict[str, Tensor], found: dict[Slot, Link], searches: Sequence[Search]) -> None:
    """Match parameters that no optimizer holds with tensors that only an optimizer holds.

    Args:
        setup: The training setup.
        free: The parameters by first name; those that are matched are taken out.
        found: At most one link a slot; the new ones are put in.
        searches: Ways to match, the surest first. What cannot be matched with good reason stays free.
    """
    for search in searches:
        left = [slot for slot in setup.orphans if slot not in found]
        if left and free:
            for link in search(setup, left, free, found):
                found[link.slot] = link
                free.pop(link.name)


def by_name(setup: Setup, left: Sequence[Slot], free: Mapping[str, Tensor], found: Mapping[Slot, Link]) -> list[Link]:
    """The optimizer was made with names, or it is known where in the model the old tensor was."""
    names = [(setup.former.get(id(slot.tensor), slot.name), slot) for slot in left]
    named = {name: slot for name, slot in names if name in free}
    return [_link(name, free[name], slot, "name") for name, slot in named.items() if name is not None]


def by_values(setup: Setup, left: Sequence[Slot], free: Mapping[str, Tensor], found: Mapping[Slot, Link]) -> list[Link]:
    """The new tensor lies in the old one's memory, or its values are the old one's."""
    open_names, made = dict(free), []
    for slot in left:
        for name, live in open_names.items():
            origin = derive(live, slot.tensor)
            if origin is not None:
                made.append(Link(name, live, slot, "memory" if origin.kind == "same memory" else "values", origin))
                del open_names[name]
                break
    return made


def by_order(
    setup: Setup, left: Sequence[Slot], free: Mapping[str, Tensor], found: Mapping[Slot, Link]
) -> Iterator[Link]:
    """Between two places of the optimizer that are known lie as many strangers as unknown parameters in the model."""
    order = {name: place for place, name in enumerate(setup.parameters)}
    known = {id(p): name for name, p in setup.parameters.items()}
    known |= {id(slot.tensor): link.name for slot, link in found.items()}
    taken: set[str] = set()
    for strangers, before, after in _runs(setup, left, known):
        low = order[before] if before else -1
        high = order[after] if after else len(order)
        candidates = [name for name in free if low < order[name] < high and name not in taken]
        elsewhere = any(id(slot.tensor) in setup.once(_in_other_models) for slot in strangers)
        if len(candidates) == len(strangers) and (not elsewhere or (before and after)):
            pairs = list(zip(candidates, strangers, strict=True))
            if all(_alike(free[name], slot.tensor) for name, slot in pairs):
                taken |= set(candidates)
                yield from (_link(name, free[name], slot, "order") for name, slot in pairs)


def _in_other_models(setup: Setup) -> set[int]:
    """Ids of parameters of live modules outside the model: those of a loss with weights, of another model."""
    own = {id(module) for module in setup.given.modules()}
    modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module) and id(m) not in own]
    tables = [vars(module).get("_parameters", {}) for module in modules]
    return {id(p) for table in tables for p in table.values() if p is not None}


def _runs(
    setup: Setup, left: Sequence[Slot], known: dict[int, str]
) -> Iterator[tuple[list[Slot], str | None, str | None]]:
    """Neighbouring strangers of one optimizer, with the names of the known places just before and after them."""
    strange = set(left)
    for optimizer in setup.optimizers:
        slots = [slot for slot in setup.held.values() if slot.optimizer is optimizer]
        before: str | None = None
        runs = [(is_strange, list(run)) for is_strange, run in groupby(slots, lambda slot: slot in strange)]
        for place, (is_strange, run) in enumerate(runs):
            if not is_strange:
                before = known.get(id(run[-1].tensor))
                continue
            after = known.get(id(runs[place + 1][1][0].tensor)) if place + 1 < len(runs) else None
            yield run, before, after


def by_shape(
    setup: Setup, left: Sequence[Slot], free: Mapping[str, Tensor], found: Mapping[Slot, Link]
) -> Iterator[Link]:
    """As many abandoned tensors of a shape as parameters of that shape; nothing else refers to the old ones."""
    lost = [slot for slot in left if id(slot.tensor) in setup.abandoned]
    for shape in dict.fromkeys(slot.tensor.shape for slot in lost):
        old = [slot for slot in lost if slot.tensor.shape == shape]
        new = [name for name, live in free.items() if live.shape == shape]
        if len(old) == len(new):
            yield from (_link(name, free[name], slot, "shape") for name, slot in zip(new, old, strict=True))


def _link(name: str, live: Tensor, slot: Slot, by: str) -> Link:
    """A link that does not rest on values; they may still tell what was done."""
    origin = derive(live, slot.tensor)
    if origin is None:
        kind: Kind = relation(live, slot.tensor)
        origin = Origin(kind, () if live.shape == slot.tensor.shape else None)
    return Link(name, live, slot, by, origin)


def _alike(new: Tensor, old: Tensor) -> bool:
    """Whether one could be a smaller or larger form of the other."""
    pairs = list(zip(new.shape, old.shape, strict=False))
    return new.dim() == old.dim() and (all(n <= o for n, o in pairs) or all(n >= o for n, o in pairs))


def with_siblings(link: Link, others: Sequence[Link]) -> Link:
    """Take the cut of rows from a tensor of the same module where the values did not tell (a bias of zeros)."""
    if link.origin.selections is not None or link.live.dim() != 1:
        return link
    size, kept = link.slot.tensor.shape[0], link.live.shape[0]
    for other in others:
        for selection in other.origin.selections or ():
            same_module = other.name.rpartition(".")[0] == link.name.rpartition(".")[0]
            if same_module and (selection.dim, selection.size, selection.new_size) == (0, size, kept):
                cut: tuple[Selection, ...] = (selection,)
                return replace(link, origin=Origin("cut", cut))
    return link
