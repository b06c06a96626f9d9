"""The parts of a report that are about a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from secateur.graph.coupling import Coupling
from secateur.graph.drawing import draw
from secateur.report.figures import Bars, Fact, Facts, Figure, Picture, Section, Table, table
from secateur.report.layers import Layer, layers_of
from secateur.report.units import Cell, Unit
from secateur.shrink import GrowPlan, LatencyTable, NumberPlan, ShrinkPlan
from secateur.shrink.composing import kept_whole

__all__ = ["cost_bars", "plan_sections", "width_bars"]

Plan = ShrinkPlan | GrowPlan

_COSTS: dict[str, tuple[str, Unit]] = {
    "parameters": ("Parameters", "count"),
    "macs": ("MACs", "count"),
    "seconds": ("Predicted time", "seconds"),
}
_SHORT = {"parameters": "parameters", "macs": "MACs", "seconds": "time"}
_TOTALS: dict[str, tuple[str, Unit]] = {
    "parameters": ("Parameters", "count"),
    "macs": ("MACs", "count"),
    "activation_bytes": ("Activation memory", "bytes"),
    "latency": ("Predicted time of products", "seconds"),
}
_NAMES_AND_REASON = re.compile(r"(?P<names>.*?(?:\]| more)): (?P<why>.*)", re.DOTALL)


def plan_sections(plan: Plan, model: nn.Module | None, latency_table: LatencyTable | None) -> Iterator[Section]:
    """The parts of a report on a plan.

    Args:
        plan: The plan.
        model: The model, before or after.
        latency_table: How long products take, to say where time goes.

    Raises:
        InvalidInputError: The table does not cover a product of the model.
    """
    layers = layers_of(plan, model, latency_table)
    yield _summary(plan)
    yield Section("Widths before and after", (width_bars(plan), _widths(plan)), _widths_text(plan))
    yield Section(_where_title(layers), tuple(_where(layers)), _where_text(layers))
    yield Section("What is kept whole, and why", (_kept(plan),))
    yield from _following(plan)
    coupling = getattr(plan, "coupling", None)
    if isinstance(coupling, Coupling):
        yield coupling_section(coupling)


def coupling_section(coupling: Coupling) -> Section:
    """The picture of which layers share which width."""
    text = (
        "Every layer is a row; every vertical line is a group of units that can only go together. A full dot is an "
        "output of the layer, a ring an input. Letters mark what is kept whole."
    )
    return Section("Which layers share a width", (Picture("Coupling groups of the model", draw(coupling)),), text)


def _summary(plan: Plan) -> Section:
    """The totals."""
    costs: list[Fact] = []
    for name, (label, unit) in _TOTALS.items():
        pair = getattr(plan, name, None)
        if pair is not None:
            costs.append(Fact(label, pair[1], pair[0], unit))
    before, after = (sum(getattr(group, when) for group in plan.groups) for when in ("before", "after"))
    costs.append(Fact("Units in groups", after, before, "count"))
    figures: list[Figure] = [Facts(tuple(costs))]
    shares = [fact for fact in costs if isinstance(fact.before, int | float) and fact.before]
    if shares:
        left = tuple(float(fact.after) / float(fact.before) for fact in shares)  # type: ignore[arg-type]
        bars = Bars(
            "What is left", tuple(fact.label for fact in shares), (("left", left),), "fraction", max(1.0, *left)
        )
        figures.append(bars)
    is_idle = all(group.before == group.after for group in plan.groups)
    return Section("Summary", tuple(figures), "The plan changes nothing." if is_idle else "")


def width_bars(plan: Plan) -> Bars:
    """How many units each group has before and after."""
    before, after = (tuple(float(getattr(g, when)) for g in plan.groups) for when in ("before", "after"))
    names = tuple(group.name for group in plan.groups)
    return Bars("Units of each group", names, (("before", before), ("after", after)), "count")


def _widths(plan: Plan) -> Table:
    """The same as a table."""
    rows = [
        (g.name, g.kind, g.before, g.after, g.after / g.before if g.before else None, "yes" if g.mixes else "no")
        for g in plan.groups
    ]
    columns: list[tuple[str, Unit]] = [
        ("group", "name"),
        ("units", ""),
        ("before", "count"),
        ("after", "count"),
        ("left", "fraction"),
        ("mixed by an op", ""),
    ]
    return table("Units of each group before and after", columns, rows)


def _widths_text(plan: Plan) -> str:
    """What a group is."""
    if not plan.groups:
        return "No part of the model has a width that can change."
    return (
        "A group is named after the first tensor that it touches, and the dim. Where an op mixes the units of a group "
        "(a norm, a softmax), removing some is not the same as zeroing them."
    )


def cost_bars(layers: Sequence[Layer], what: str) -> Bars | None:
    """One cost of each layer before and after.

    Args:
        layers: The layers.
        what: ``"parameters"``, ``"macs"`` or ``"seconds"``.

    Returns:
        The bars of the layers that have such a cost; None if no layer has.
    """
    pairs = [(layer.name, getattr(layer, what)) for layer in layers]
    costly = [(name, pair) for name, pair in pairs if pair is not None and any(pair)]
    if not costly:
        return None
    label, unit = _COSTS[what]
    before, after = (tuple(float(pair[side]) for _, pair in costly) for side in (0, 1))
    names = tuple(name for name, _ in costly)
    return Bars(f"{label} of each layer", names, (("before", before), ("after", after)), unit)


def _known(layers: Sequence[Layer]) -> list[str]:
    """The costs that are known of some layer."""
    return [what for what in _COSTS if any(getattr(layer, what) is not None for layer in layers)]


def _where_title(layers: Sequence[Layer]) -> str:
    """A heading that names the costs that are shown."""
    *others, last = [_SHORT[what] for what in _known(layers)] or [""]
    if not last:
        return "Every layer before and after"
    return f"Where {', '.join(others)} and {last} go" if others else f"Where {last} go"


def _where(layers: Sequence[Layer]) -> Iterator[Figure]:
    """A chart of each cost, and the table of all."""
    for what in _COSTS:
        bars = cost_bars(layers, what)
        if bars is not None:
            yield bars
    known = _known(layers)
    columns: list[tuple[str, Unit]] = [("layer", "name"), ("shape before", ""), ("shape after", "")]
    for what in known:
        label, unit = _COSTS[what]
        columns += [(f"{label} before", unit), (f"{label} after", unit)]
    yield table("Every layer before and after", columns, [_layer_row(layer, known) for layer in layers])


def _layer_row(layer: Layer, known: Sequence[str]) -> list[Cell]:
    """One line of the table of layers."""
    row: list[Cell] = [layer.name, *("×".join(map(str, shape)) or None for shape in layer.shapes)]
    for what in known:
        row += getattr(layer, what) or (None, None)
    return row


def _where_text(layers: Sequence[Layer]) -> str:
    """What is not known."""
    if all(layer.parameters is None for layer in layers):
        return "The plan was read from a file, which knows the tensors that change and no others."
    if all(layer.macs is None for layer in layers):
        return "The plan does not hold an analysis of the model, so MACs are known for the whole model only."
    return "A layer is a module that owns tensors; the shape is that of its tensor with the most dims."


def _kept(plan: Plan) -> Table:
    """Why parts of the model stay."""
    rows: list[tuple[Cell, ...]] = []
    coupling = getattr(plan, "coupling", None)
    reasons: dict[str, list[str]] = {}
    if isinstance(coupling, Coupling):
        for kept in coupling.kept:
            reasons.setdefault(kept.why, []).append(f"{kept.name}[{kept.dim}]")
    rows += [(why, tuple(names)) for why, names in reasons.items()]
    known = kept_whole(coupling) if isinstance(coupling, Coupling) else ()
    for line in plan.kept_whole:
        if line not in known:
            parts = _NAMES_AND_REASON.fullmatch(line)
            rows.append((parts["why"], parts["names"]) if parts else (line, None))
    return table("What is kept whole, and why", [("because", ""), ("tensors and dims", "name")], rows)


def _following(plan: Plan) -> Iterator[Section]:
    """Numbers and biases that change with the tensors."""
    figures: list[Figure] = []
    if plan.numbers:
        columns: list[tuple[str, Unit]] = [("number", "name"), ("before", "count"), ("after", "count")]
        numbers = [(_named(number), number.before, number.after) for number in plan.numbers]
        figures.append(table("Numbers stored in the model that follow", columns, numbers))
    changes = getattr(plan, "bias_changes", {})
    if changes:
        columns = [("bias", "name"), ("largest addition", "")]
        additions = [(name, float(change.abs().max())) for name, change in changes.items()]
        figures.append(table("Constants of removed units that go into biases", columns, additions))
    if figures:
        yield Section("What follows", tuple(figures))


def _named(number: NumberPlan) -> str:
    """Where a number is stored."""
    return f"{number.path}.{number.name}".lstrip(".") + ("" if number.index is None else f"[{number.index}]")
