"""Autograd's view of the parameters against their shapes now: the first question's subject."""

from __future__ import annotations

from collections.abc import Iterator

from secateur.doctor.accumulators import stale
from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import expression, listed, shape_of


@check("stale-autograd-graph", structural=True)
def stale_autograd_graph(setup: Setup) -> Iterator[Finding]:
    """A graph from before a change of shape is alive, and with it the accumulator that remembers the old shape."""
    found = list(stale(setup))
    if not found:
        return
    names = tuple(name for name, _, _ in found)
    name, parameter, shape = found[0]
    there = expression(name)
    yield Finding(
        "stale-autograd-graph",
        names,
        f"autograd still expects gradients of an old shape for {listed(names)}: {tuple(shape)} for {name!r}, which is "
        f"{tuple(parameter.shape)} now.",
        f"The shape was changed by hand, as by `{there}.data = {there}.data[keep]`, while a graph from before is "
        "alive: the variable of an old loss or output keeps it, and with it the node that accumulates this gradient.",
        "The next backward() raises 'returned an invalid gradient … expected shape compatible with "
        f"{list(shape)}'; backward through the old graph leaves a gradient of the old shape.",
        "secateur.relink_(model, optimizer)\n"
        f"secateur.resize_(model, {name!r}, dim=…, keep=keep, optimizer=optimizer)   # in place of that line",
        repairable=True,
        data={"tensors": {n: {"shape": shape_of(p), "expected_shape": list(s)} for n, p, s in found}},
    )
