"""The figures of a report as plots of matplotlib, which is imported when the first one is drawn and only here."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling
from secateur.report.comparisons import COSTS, comparison_bars, data_of
from secateur.report.figures import Bars, Curves, Line
from secateur.report.gathering import check_plan, masks_of, runs_of
from secateur.report.layers import layers_of, owner
from secateur.report.plans import cost_bars, width_bars
from secateur.report.sparsity import sparsity_bars, zeros_of
from secateur.report.trainings import Points, curve_figures, events_of, mask_curves
from secateur.report.units import Unit
from secateur.shrink import GrowPlan, LatencyTable, ShrinkPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_comparison",
    "plot_costs",
    "plot_groups",
    "plot_masks",
    "plot_sparsity",
    "plot_training",
    "plot_widths",
]

_GREY, _ACCENT, _EVENT = "#7a8694", "#0f766e", "#b42318"
_INCHES = 0.22  # of height, for each bar
_SCALES: dict[Unit, tuple[float, str]] = {"fraction": (100.0, "%"), "seconds": (1e3, "ms"), "bytes": (1e-6, "MB")}


def plot_widths(plan: ShrinkPlan | GrowPlan, *, ax: Axes | None = None) -> Axes:
    """Draw how many units each group has before and after a plan.

    Args:
        plan: The plan.
        ax: Where to draw; a new figure of fitting size if left out, as in all functions here.

    Returns:
        The axes, in a figure that `show` and `savefig` know.

    Raises:
        InvalidInputError: It is no plan, or matplotlib is not installed.
    """
    return _bars(width_bars(check_plan(plan)), ax)


def plot_costs(
    plan: ShrinkPlan | GrowPlan,
    what: str = "parameters",
    *,
    model: nn.Module | None = None,
    latency_table: LatencyTable | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw where parameters, MACs or time go: a cost of each layer before and after a plan.

    Args:
        plan: The plan.
        what: ``"parameters"``, ``"macs"`` or ``"seconds"``.
        model: The model, for a plan that was read from a file.
        latency_table: How long products take, for seconds.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: It is no plan or no cost, or the plan does not know it of single layers; or matplotlib is not
            installed.
    """
    if what not in ("parameters", "macs", "seconds"):
        raise InvalidInputError(f"{what!r} is no cost of layers.", fix="'parameters', 'macs' or 'seconds'")
    bars = cost_bars(layers_of(check_plan(plan), model, latency_table), what)
    if bars is None:
        raise InvalidInputError(
            f"the plan does not know {what} of single layers.",
            fix="latency_table=secateur.shrink.measure_latency(model, coupling) for seconds, model=… for a loaded plan",
        )
    return _bars(bars, ax)


def plot_sparsity(
    masks: Mapping[str, Tensor] | None = None,
    *,
    model: nn.Module | None = None,
    training: object = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the sparsity of each tensor: of masks, of a model, or after the last step of a training.

    Args:
        masks: Bool masks by dotted name, True = kept.
        model: The model, for its masks, or for its zeros if it has none.
        training: A training of `secateur.dst`, or its history.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: Hardly anything is zero, or matplotlib is not installed.
    """
    lines = zeros_of(masks or masks_of(training), model, runs_of(training)[0])
    if not lines:
        raise InvalidInputError("hardly anything is zero, so there is nothing to draw.", fix="plot_sparsity(masks)")
    return _bars(sparsity_bars(lines), ax)


def plot_training(curves: Mapping[str, Points], *, training: object = None, ax: Axes | None = None) -> Axes:
    """Draw curves of a training, with the steps marked at which masks changed or units were removed.

    Args:
        curves: Curves by name, as for `gather`; all of them are drawn in one plot.
        training: A training of `secateur.dst`, its history, a `ShrinkSchedule`, or several of these.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: A curve is none, or matplotlib is not installed.
    """
    histories, schedules = runs_of(training)
    events = events_of(histories, schedules)
    lines: list[Line] = [line for figure in curve_figures(curves, events) for line in figure.lines]
    return _curves(Curves("The training", tuple(lines), tuple(events)), ax)


def plot_masks(training: object, *, ax: Axes | None = None) -> Axes:
    """Draw sparsity, exchanged entries and those that have been kept at some time over the steps of a training.

    Args:
        training: A training of `secateur.dst`, or its history.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: It has no history, or matplotlib is not installed.
    """
    histories, _ = runs_of(training)
    if not any(map(len, histories)):
        raise InvalidInputError("this training has no history of masks.", fix="plot_masks(secateur.RigL(…))")
    return _curves(mask_curves(next(filter(len, histories))), ax)


def plot_comparison(comparison: object, what: str = "latency", *, ax: Axes | None = None) -> Axes:
    """Draw one cost of each model that `secateur.profile` has compared.

    Args:
        comparison: What it returned.
        what: ``"latency"``, ``"parameters"``, ``"nonzeros"``, ``"macs"``, ``"nonzero_macs"`` or ``"bytes"``.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: It is no profile, or that cost is not in it; or matplotlib is not installed.
    """
    data = data_of(comparison)
    bars = comparison_bars(data, what) if "models" in data and what in COSTS else None
    if bars is None:
        raise InvalidInputError(f"there is no {what!r} in it.", fix=" or ".join(map(repr, COSTS)))
    return _bars(bars, ax)


def plot_groups(coupling: Coupling, *, ax: Axes | None = None) -> Axes:
    """Draw which layers share which width; `secateur.graph.draw` makes the larger picture.

    Every layer is a row, every group a vertical line; a full dot is an output of the layer, a ring an input.

    Args:
        coupling: The result of `secateur.analyze`, or the coupling of a plan.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        InvalidInputError: It is no coupling, or matplotlib is not installed.
    """
    if not isinstance(coupling, Coupling):
        raise InvalidInputError(f"{type(coupling).__name__} is no coupling.", fix="plan.coupling")
    rows = {layer: row for row, layer in enumerate(dict.fromkeys(map(owner, coupling.dims)))}
    axes = ax or _new_axes(len(rows))
    for column, group in enumerate(coupling.groups):
        dims: dict[int, set[int]] = {}
        for name, dim in group.footprint:
            dims.setdefault(rows[owner(name)], set()).add(dim)
        colour = f"C{column % 10}"
        axes.plot([column, column], [min(dims), max(dims)], color=colour, alpha=0.5)
        for row, touched in dims.items():
            axes.plot(column, row, "o", color=colour, markerfacecolor=colour if 0 in touched else "white")
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.set_title("Layers that share a width")
    return axes


def _bars(figure: Bars, ax: Axes | None) -> Axes:
    """Horizontal bars, from the top down."""
    axes = ax or _new_axes(len(figure.labels) * len(figure.series))
    scale, unit = _SCALES.get(figure.unit, (1.0, ""))
    height = 0.8 / len(figure.series)
    colours = (_ACCENT,) if len(figure.series) == 1 else (_GREY, _ACCENT)
    for number, ((name, values), colour) in enumerate(zip(figure.series, colours, strict=False)):
        places = [row + height * number for row in range(len(values))]
        axes.barh(places, [scale * value for value in values], height=height, label=name, color=colour)
    middle = height * (len(figure.series) - 1) / 2
    axes.set_yticks([row + middle for row in range(len(figure.labels))], list(figure.labels))
    axes.invert_yaxis()
    axes.set_xlim(0, scale * figure.length)
    axes.set_xlabel(unit)
    axes.set_title(figure.caption)
    if len(figure.series) > 1:
        axes.legend()
    return axes


def _curves(figure: Curves, ax: Axes | None) -> Axes:
    """Curves with vertical lines at the events."""
    axes = ax or _new_axes(0)
    scale, unit = _SCALES.get(figure.unit, (1.0, ""))
    for line in figure.lines:
        axes.plot([step for step, _ in line.points], [scale * value for _, value in line.points], label=line.name)
    for step in sorted({step for step, _ in figure.events}):
        axes.axvline(step, color=_EVENT, linestyle=":", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.set_title(figure.caption)
    if figure.lines:
        axes.legend()
    return axes


def _new_axes(rows: int) -> Axes:
    """Axes in a new figure that has room for so many bars."""
    axes: Axes
    _, axes = _pyplot().subplots(figsize=(8.0, max(4.0, 1.0 + _INCHES * rows)), layout="constrained")
    return axes


def _pyplot() -> ModuleType:
    """The part of matplotlib that makes figures.

    Raises:
        InvalidInputError: It is not installed.
    """
    module = _compat.optional("matplotlib.pyplot")
    if module is None:
        raise InvalidInputError("plots are drawn by matplotlib.", fix="pip install 'secateur[plot]'")
    return module
