"""``secateur analyze``: which units a model has, what is kept whole and why, and what it costs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import secateur
from secateur._progress import stages
from secateur.cli.folders import without_cache
from secateur.cli.inputs import add_inputs, made_inputs
from secateur.cli.models import add_model, load_model
from secateur.cli.screen import Screen, table
from secateur.graph import Coupling

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_FEW = 3


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``analyze`` to the command line."""
    parser = commands.add_parser(
        "analyze",
        help="show which units could be removed, what is kept whole and why, and what the model costs",
        description="Watches one run of the model and shows the groups of channels, neurons and heads that can be "
        "removed, which positions must stay and why, and the parameters, MACs and activations of the run.",
    )
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "--ignore", metavar="GLOB", action="append", default=[], help="parameters whose sizes stay; may be repeated"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Analyse the model."""
    with stages(2) as begin:
        begin("loading")
        model = load_model(options.model, dict(options.arg), checkpoint=options.checkpoint, seed=options.seed)
        inputs = made_inputs(model, options.input, seed=options.seed)
        begin("watching one run")
        with without_cache(model):
            coupling = secateur.analyze(model, inputs, ignore=options.ignore)
        costs = {
            "parameters": coupling.num_parameters(),
            "macs": coupling.macs(),
            "activation_bytes": coupling.activation_bytes(),
            "units": coupling.num_units,
        }
    _show(screen, str(options.model), coupling, costs)
    return {
        "model": str(options.model),
        **costs,
        "groups": [
            {
                "name": group.name,
                "kind": group.kind,
                "units": len(group.units),
                "touches": [
                    {"tensor": name, "dim": dim, "positions": count} for (name, dim), count in group.footprint.items()
                ],
            }
            for group in coupling.groups
        ],
        "kept": [vars(kept) for kept in coupling.kept],
    }


def _show(screen: Screen, title: str, coupling: Coupling, costs: dict[str, int]) -> None:
    """The tables for people."""
    groups = table(f"{title}: units that can be removed", "number", "units", "kind", "touches", sides="rrll")
    for number, group in enumerate(coupling.groups):
        touched = _some([f"{name}[{dim}]" for name, dim in group.footprint])
        groups.add_row(str(number), f"{len(group.units):,}", group.kind, touched)
    screen.console.print(groups)
    reasons: dict[str, list[str]] = {}
    for kept in coupling.kept:
        reasons.setdefault(kept.why, []).append(f"{kept.name}[{kept.dim}]")
    if reasons:
        whole = table("kept whole", "why", "dims")
        for why, dims in reasons.items():
            whole.add_row(why, _some(dims))
        screen.console.print(whole)
    screen.console.print("  ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in costs.items()))


def _some(names: list[str]) -> str:
    """The first few of several names."""
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
