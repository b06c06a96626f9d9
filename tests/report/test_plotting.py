"""Plots: what matplotlib draws has the numbers of the report, and matplotlib is imported for them alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from torch import nn

import secateur
from secateur import InvalidInputError, RigL, _compat, report
from secateur.shrink import measure_latency
from tests.report.pages import trained
from tests.shrink.models import SmallCNN

X = torch.randn(2, 3, 6, 6)


@pytest.fixture(autouse=True)
def _no_figure_stays() -> Iterator[None]:
    yield
    plt.close("all")


def planned() -> secateur.ShrinkPlan:
    return secateur.plan_shrink(SmallCNN().eval(), X, sparsity=0.4)


def bars_of(axes: Axes) -> list[list[float]]:
    """Lengths of the bars of each series."""
    return [[bar.get_width() for bar in several] for several in axes.containers]


def labels_of(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_widths_are_those_of_the_plan() -> None:
    plan = planned()
    axes = report.plot_widths(plan)
    assert bars_of(axes) == [[g.before for g in plan.groups], [g.after for g in plan.groups]]
    assert labels_of(axes) == [group.name for group in plan.groups]


@pytest.mark.parametrize("what", ["parameters", "macs"])
def test_costs_add_up_to_those_of_the_plan(what: str) -> None:
    plan = planned()
    assert tuple(map(sum, bars_of(report.plot_costs(plan, what)))) == getattr(plan, what)


def test_seconds_are_milliseconds_of_the_table() -> None:
    model = SmallCNN().eval()
    table = measure_latency(model, secateur.analyze(model, X))
    plan = secateur.plan_shrink(model, X, sparsity=0.4, latency_table=table)
    axes = report.plot_costs(plan, "seconds", latency_table=table)
    assert plan.latency is not None
    assert sum(bars_of(axes)[0]) == pytest.approx(1e3 * plan.latency[0])
    assert axes.get_xlabel() == "ms"


def test_sparsity_is_in_per_cent() -> None:
    masks = {"a": torch.tensor([True, False, False, False]), "b": torch.ones(3, dtype=torch.bool)}
    axes = report.plot_sparsity(masks)
    assert bars_of(axes) == [[75.0, 0.0]]
    assert (labels_of(axes), axes.get_xlabel(), axes.get_xlim()) == (["a", "b"], "%", (0.0, 100.0))


def test_sparsity_of_a_training_is_that_of_its_masks() -> None:
    _, _, training, _ = trained()
    assert isinstance(training, RigL)
    expected = [100 * training.masks.sparsity(name) for name in training.masks]
    assert bars_of(report.plot_sparsity(training=training)) == [pytest.approx(expected)]


def test_curves_have_their_points_and_their_events() -> None:
    _, _, training, losses = trained()
    axes = report.plot_training({"loss": losses}, training=training)
    curve, *events = axes.get_lines()
    assert list(curve.get_xdata()) == list(range(1, 17))
    assert list(curve.get_ydata()) == losses
    assert [line.get_xdata()[0] for line in events] == [4, 8, 12]


def test_masks_of_a_training_are_those_of_its_history() -> None:
    _, _, training, _ = trained()
    assert isinstance(training, RigL)
    axes = report.plot_masks(training)
    assert list(axes.get_lines()[0].get_ydata()) == [100 * change.sparsity for change in training.history]


def test_models_are_compared_by_any_of_their_costs() -> None:
    profile = secateur.profile({"a": nn.Linear(4, 8), "b": nn.Linear(4, 2)}, torch.randn(1, 4), seconds=0)
    axes = report.plot_comparison(profile, "parameters")
    assert (bars_of(axes), labels_of(axes)) == ([[40, 10]], ["a", "b"])


def test_groups_have_a_dot_in_every_layer_that_they_touch() -> None:
    coupling = planned().coupling
    assert coupling is not None
    axes = report.plot_groups(coupling)
    rows = labels_of(axes)
    dots = {
        (int(line.get_xdata()[0]), rows[int(line.get_ydata()[0])])
        for line in axes.get_lines()
        if line.get_marker() == "o"
    }
    assert dots == {
        (number, name.rpartition(".")[0]) for number, group in enumerate(coupling.groups) for name, _ in group.footprint
    }


PLOTS: dict[str, Callable[..., Axes]] = {
    "widths": lambda **ax: report.plot_widths(planned(), **ax),
    "costs": lambda **ax: report.plot_costs(planned(), **ax),
    "sparsity": lambda **ax: report.plot_sparsity({"a": torch.zeros(2, dtype=torch.bool)}, **ax),
    "training": lambda **ax: report.plot_training({"loss": [1.0]}, **ax),
    "masks": lambda **ax: report.plot_masks(trained()[2], **ax),
    "comparison": lambda **ax: report.plot_comparison(
        secateur.profile({"a": nn.Linear(4, 8)}, torch.randn(1, 4), seconds=0), "macs", **ax
    ),
    "groups": lambda **ax: report.plot_groups(planned().coupling, **ax),
}


def test_every_plot_is_tried() -> None:
    assert {f"plot_{name}" for name in PLOTS} == {name for name in report.__all__ if name.startswith("plot_")}


@pytest.mark.parametrize("name", PLOTS)
def test_plots_go_where_they_are_told_to(name: str) -> None:
    _, axes = plt.subplots()
    assert PLOTS[name](ax=axes) is axes
    assert axes.get_title()
    assert plt.get_fignums() == [1]


@pytest.mark.parametrize("name", PLOTS)
def test_plots_without_matplotlib_say_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "optional", lambda name: None)
    with pytest.raises(InvalidInputError, match=r"secateur\[plot\]"):
        PLOTS[name]()


def test_matplotlib_is_not_imported_by_a_report() -> None:
    code = (
        "import sys, torch, secateur.report as report\n"
        "report.gather(curves={'loss': [1.0]}).to_html()\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: report.plot_widths(3), "int is no plan"),  # type: ignore[arg-type]
        (lambda: report.plot_costs(planned(), "money"), "'money' is no cost"),
        (lambda: report.plot_costs(planned(), "seconds"), "does not know seconds"),
        (lambda: report.plot_sparsity(model=nn.Linear(3, 2)), "hardly anything is zero"),
        (lambda: report.plot_masks(secateur.dst.History()), "no history"),
        (lambda: report.plot_comparison(3), "is no comparison"),
        (lambda: report.plot_groups(nn.Linear(3, 2)), "is no coupling"),  # type: ignore[arg-type]
        (lambda: report.plot_training({"loss": 3}), "'loss' is none"),  # type: ignore[dict-item]
    ],
    ids=["plan", "cost", "seconds", "sparsity", "masks", "comparison", "groups", "curve"],
)
def test_wrong_input_is_refused_before_a_figure_is_made(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
    assert plt.get_fignums() == []


def test_a_cost_that_was_not_measured_is_refused() -> None:
    profile = secateur.profile({"a": nn.Linear(4, 8)}, torch.randn(1, 4), seconds=0)
    for what in ("latency", "money"):
        with pytest.raises(InvalidInputError, match=f"no '{what}' in it"):
            report.plot_comparison(profile, what)
