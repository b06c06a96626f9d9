"""Weights that were one object under two names and are two now."""

from __future__ import annotations

from collections.abc import Iterator

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.strays import strays
from secateur.doctor.ties import Tie, declared, of_unlike_layers
from secateur.doctor.wording import expression, shape_of


@check("tied-weights-apart", structural=True)
def tied_weights_apart(setup: Setup) -> Iterator[Finding]:
    """Two names of one tensor were tied and came apart when one of them was replaced."""
    ties = [*setup.once(strays).ties, *declared(setup)]
    if not setup.optimizers:
        ties += of_unlike_layers(setup)
    order = list(setup.parameters)
    for pair, tie in {frozenset((tie.new, tie.old)): tie for tie in reversed(ties)}.items():
        yield _finding(setup, tie, sorted(pair, key=lambda name: order.index(name) if name in order else -1))


def _finding(setup: Setup, tie: Tie, names: list[str]) -> Finding:
    """The finding for one pair."""
    new, old = (setup.model.get_parameter(name) for name in (tie.new, tie.old))
    certain = tie.origin is not None
    return Finding(
        "tied-weights-apart",
        tuple(names),
        f"tied weights came apart: {names[0]} / {names[1]} ({tuple(setup.model.get_parameter(names[0]).shape)} and "
        f"{tuple(setup.model.get_parameter(names[1]).shape)}).",
        f"{tie.new} was replaced by a new object, as by `{expression(tie.new)} = nn.Parameter(…)`, and {tie.old} is "
        f"still the old one, judging by {tie.by}.",
        "Each gets only its own gradient, so they drift apart, and the model has one tensor more.",
        "secateur.relink_(model, optimizer)" if certain else f"{expression(tie.old)} = {expression(tie.new)}",
        repairable=certain,
        data={"new": tie.new, "old": tie.old, "shapes": {tie.new: shape_of(new), tie.old: shape_of(old)}},
    )
