"""What the optimizer holds against what the model has: the second question's subject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.replaced import Link
from secateur.doctor.setup import Setup, Slot
from secateur.doctor.strays import strays
from secateur.doctor.wording import expression, listed, shape_of


@check("stale-optimizer-reference", structural=True)
def stale_optimizer_reference(setup: Setup) -> Iterator[Finding]:
    """A parameter was replaced by a new object; the optimizer goes on with the old one."""
    links = setup.once(strays).links
    if not links:
        return
    order = {name: place for place, name in enumerate(setup.parameters)}
    links = sorted(links, key=lambda link: order[link.name])
    names = tuple(link.name for link in links)
    held = "tensor that it replaced" if len(links) == 1 else f"{len(links)} tensors that they replaced"
    yield Finding(
        "stale-optimizer-reference",
        names,
        f"the optimizer ({_classes(links)}) does not hold {listed(names)}, but still the {held}.",
        "\n".join(_lines(links)),
        "Gradients arrive, but optimizer.step() moves the old tensors: these parameters stay as they are, without "
        "their momentum, and zero_grad() never clears their gradients.",
        f"secateur.relink_(model, optimizer)\n{_in_place(links[0])}   # from then on, in place of that line",
        repairable=True,
        data={
            "unknown": len(setup.unheld),
            "trainable": len(setup.trainable),
            "orphans": len(links),
            "tensors": {link.name: _facts(setup, link) for link in links},
        },
    )


def _classes(links: Iterable[Link]) -> str:
    """Names of the optimizers' classes."""
    return ", ".join(dict.fromkeys(type(link.slot.optimizer).__name__ for link in links))


def _facts(setup: Setup, link: Link) -> dict[str, object]:
    """One link as plain data."""
    return {
        "shape": shape_of(link.live),
        "replaced_shape": shape_of(link.slot.tensor),
        "kind": link.origin.kind,
        "matched_by": link.by,
        "optimizer": setup.optimizers.index(link.slot.optimizer),
        "group": link.slot.group,
        "position": link.slot.position,
    }


def _lines(links: Iterable[Link]) -> Iterator[str]:
    """For each kind of replacement, which parameters and what kind of line does that."""
    links = list(links)
    for kind in dict.fromkeys(link.origin.kind for link in links):
        same = [link for link in links if link.origin.kind == kind]
        yield f"{listed([link.name for link in same])}: {_line(same[0])}"


def _line(link: Link) -> str:
    """What was done to one parameter, and the kind of line that does it."""
    there = expression(link.name)
    new, old = tuple(link.live.shape), tuple(link.slot.tensor.shape)
    index = _index(link)
    return {
        "same memory": f"a new object around the same memory, as by `{there} = nn.Parameter({there})`.",
        "copied": f"a new object with the same values, as by `{there} = nn.Parameter(1.0 * {there})`, "
        "copy.deepcopy or load_state_dict(…, assign=True).",
        "scaled": f"a new object with rescaled values, as by `{there} = nn.Parameter(0.5 * {there})`.",
        "masked": f"a new object with the same values and more zeros, as by `{there} = nn.Parameter(mask * {there})`.",
        "cut": f"a new, smaller object, {old} -> {new}, as by `{there} = nn.Parameter({there}{index})`.",
        "new values": f"a new object with other values, {old} -> {new}, as by `{there} = nn.Parameter(…)` or a new "
        "layer in the old one's place.",
    }[link.origin.kind]


def _index(link: Link) -> str:
    """The index expression of a cut."""
    pairs = list(zip(link.live.shape, link.slot.tensor.shape, strict=True)) if link.origin.kind == "cut" else []
    marks = ["keep" if new != old else ":" for new, old in pairs]
    while marks and marks[-1] == ":":
        marks.pop()
    return f"[{', '.join(marks)}]"


def _in_place(link: Link) -> str:
    """How to do the same without a new object."""
    if link.origin.kind == "cut":
        sizes = zip(link.live.shape, link.slot.tensor.shape, strict=True)
        dim = next((dim for dim, (new, old) in enumerate(sizes) if new != old), 0)
        return f"secateur.resize_(model, {link.name!r}, dim={dim}, keep=keep, optimizer=optimizer)"
    if link.origin.kind == "masked":
        return "masks = secateur.prune_(model, optimizer, sparsity=…)"
    return f"with torch.no_grad(): {expression(link.name)}.copy_(new_values)"


@check("parameter-not-in-optimizer", structural=True)
def parameter_not_in_optimizer(setup: Setup) -> Iterator[Finding]:
    """A trainable parameter that no optimizer holds and that replaced nothing in one."""
    names = tuple(setup.once(strays).unknown)
    if names:
        yield Finding(
            "parameter-not-in-optimizer",
            names,
            f"{len(names)} of {len(setup.trainable)} trainable parameters are in no optimizer: {listed(names)}.",
            "They were added to the model after the optimizer was made, or the optimizer was given only some of the "
            "parameters while the others still require gradients.",
            "Gradients are computed for them and never used; they stay as they are.",
            f"optimizer.add_param_group({{'params': [{expression(names[0])}]}})\n"
            f"{expression(names[0])}.requires_grad_(False)   # if it is meant to stay",
            severity="warning",
            data={"unknown": len(names), "trainable": len(setup.trainable)},
        )


@check("foreign-optimizer", structural=True)
def foreign_optimizer(setup: Setup) -> Iterator[Finding]:
    """An optimizer that holds nothing that is or was this model's."""
    for optimizer in setup.once(strays).foreign:
        kind = type(optimizer).__name__
        yield Finding(
            "foreign-optimizer",
            tuple(setup.unheld),
            f"the optimizer ({kind}) holds no parameter of this model.",
            "It was made for another model, or for an earlier instance of this one.",
            "optimizer.step() does not move this model.",
            f"optimizer = torch.optim.{kind}(model.parameters(), lr=…)",
            data={"optimizer": setup.optimizers.index(optimizer), "trainable": len(setup.trainable)},
        )


@check("orphan-tensor", structural=True)
def orphan_tensor(setup: Setup) -> Iterator[Finding]:
    """A tensor in the optimizer that the model no longer has and that nothing else refers to."""
    result = setup.once(strays)
    orphans = [slot for slot in result.orphans if slot.optimizer not in result.foreign]
    if orphans:
        shown = listed([slot.name or str(tuple(slot.tensor.shape)) for slot in orphans])
        yield Finding(
            "orphan-tensor",
            tuple(slot.name for slot in orphans if slot.name),
            f"the optimizer holds {len(orphans)} tensor(s) that the model no longer has: {shown}.",
            "A layer was removed or replaced after the optimizer was made.",
            "They take memory, with their state; they receive no gradient.",
            "secateur.relink_(model, optimizer)",
            repairable=True,
            severity="warning",
            data={"orphans": [{**_place(setup, slot), "shape": shape_of(slot.tensor)} for slot in orphans]},
        )


def _place(setup: Setup, slot: Slot) -> dict[str, int]:
    """A slot as plain data."""
    optimizer = setup.optimizers.index(slot.optimizer)
    return {"optimizer": optimizer, "group": slot.group, "position": slot.position}


@check("duplicate-parameter", structural=True)
def duplicate_parameter(setup: Setup) -> Iterator[Finding]:
    """A parameter that is twice in one optimizer."""
    known = {id(p): name for name, p in setup.parameters.items()}
    places: dict[tuple[int, int], list[Slot]] = {}
    for slot in setup.slots:
        places.setdefault((id(slot.optimizer), id(slot.tensor)), []).append(slot)
    twice = {known.get(key, "?"): slots for (_, key), slots in places.items() if len(slots) > 1}
    if twice:
        names = tuple(twice)
        yield Finding(
            "duplicate-parameter",
            names,
            f"the optimizer holds {listed(names)} more than once.",
            "The same tensor was put into two groups, or twice into one, by editing param_groups.",
            "Each step moves it twice.",
            "secateur.relink_(model, optimizer)",
            repairable=True,
            data={"places": {name: [_place(setup, slot) for slot in slots] for name, slots in twice.items()}},
        )
