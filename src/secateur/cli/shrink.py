"""``secateur shrink``: whole units removed to a budget; the plan, the smaller weights and a report in a folder."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

import secateur
from secateur import Budget, ShrinkPlan
from secateur import shrink as library
from secateur._errors import InvalidInputError
from secateur._files import refuse_place, written_folder
from secateur._passes import Inputs
from secateur._progress import stages
from secateur.cli.folders import without_cache
from secateur.cli.inputs import add_inputs, made_inputs
from secateur.cli.making import facts_of
from secateur.cli.models import add_model, load_model
from secateur.cli.numbers import budget, count, sparsity
from secateur.cli.screen import Screen, table
from secateur.cli.usage import UsageError
from secateur.graph import Coupling
from secateur.report import write_html
from secateur.shrink.overrides import Overrides

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

SCORES = sorted(library.UNIT_SCORES.keys() - library.DATA_SCORES.keys())
"""The scores that need nothing but the model."""

_LOADED = {
    True: "from_pretrained loads it",
    False: "secateur.load_ loads it: no config describes it (--keep 'head dims' with --sparsity often leads to one)",
}
_VERIFIED = "the smaller model gives what the full one does, run as if the same units were gone"
PLAN, WEIGHTS, REPORT = "plan.safetensors", "model.safetensors", "report.html"


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``shrink`` to the command line."""
    parser = commands.add_parser(
        "shrink",
        help="remove whole channels, neurons and heads, to a budget",
        description="Removes the least important units until the model costs no more than the budget, tries the "
        "smaller model on the inputs, and writes the plan, the weights and an HTML report to a folder.",
    )
    add_model(parser)
    add_inputs(parser)
    _add_target(parser)
    parser.add_argument("--score", choices=SCORES, default="l2", help="what a unit is worth (default l2)")
    parser.add_argument(
        "--scope",
        choices=[scope.value for scope in library.Scope],
        default=library.Scope.PER_GROUP.value,
        help="which units compete (default per_group: every group loses the same fraction)",
    )
    parser.add_argument("--round-to", type=_multiple, metavar="N", help="what is left is a multiple of N; or auto")
    parser.add_argument(
        "--min-units", type=count, default=2, metavar="N", help="units left in every group at least (default 2)"
    )
    parser.add_argument(
        "--ignore", metavar="GLOB", action="append", default=[], help="parameters whose sizes stay; may be repeated"
    )
    parser.add_argument(
        "--override",
        metavar="GROUP=FRACTION",
        type=override,
        action="append",
        default=[],
        help="sparsity of the units of some parameters (a glob; fc.weight[1] for dim 1), or of a group by its number "
        "in secateur analyze; may be repeated",
    )
    parser.add_argument(
        "--keep",
        metavar="KIND",
        action="append",
        default=[],
        help="kind of units that stay, as secateur analyze calls it: 'head dims', without which a config of "
        "transformers can describe the smaller model; may be repeated",
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare the smaller model with the full one, run as if units were gone"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--force", action="store_true", help="replace files in a folder that is there already")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Plan, cut, and write."""
    _check_target(options)
    refuse_place(options.out, force=options.force)
    with stages(5) as begin:
        begin("loading")
        model = load_model(options.model, dict(options.arg), checkpoint=options.checkpoint, seed=options.seed)
        inputs = made_inputs(model, options.input, seed=options.seed)
        config = copy.deepcopy(getattr(model, "config", None))
        with without_cache(model):
            begin("choosing units")
            plan = _plan(model, inputs, options)
            begin("removing units")
            plan.apply_(model, tried_on=inputs, verify=inputs if options.verify else None)
        with written_folder(options.out, force=options.force) as folder:
            begin("writing")
            plan.save(folder / PLAN)
            has_config = _write_weights(model, config, inputs, folder, options)
            begin("writing the report")
            write_html(folder / REPORT, plan=plan, facts=facts_of(options), title=str(options.model))
            files = sorted(file.name for file in folder.iterdir())
    _show(screen, plan, options, files)
    if options.model.source == "hf":
        screen.console.print(_LOADED[has_config])
    figures = {**plan_figures(plan), "verified": options.verify}
    return {**figures, "model": str(options.model), "out": options.out, "files": files}


def plan_figures(plan: ShrinkPlan) -> dict[str, Any]:
    """What a plan comes to, as plain values."""
    return {
        **{name: {"before": b, "after": a} for name, (b, a) in _costs(plan).items()},
        "groups": [vars(group) for group in plan.groups],
        "kept_whole": list(plan.kept_whole),
    }


def _costs(plan: ShrinkPlan) -> dict[str, tuple[float, float]]:
    """What the model costs before and after."""
    costs: dict[str, tuple[float, float]] = {
        "parameters": plan.parameters,
        "macs": plan.macs,
        "activation_bytes": plan.activation_bytes,
    }
    return costs if plan.latency is None else costs | {"latency_seconds": plan.latency}


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Add what says how much goes."""
    target = parser.add_argument_group("how much goes (one of them at least; all budgets that are given hold)")
    helps = {
        "--macs": "MACs of the smaller model, of those now: 0.5",
        "--params": "parameters, of those now",
        "--latency": "time of matrix products and convolutions, as measured here, of that now",
    }
    for option, told in helps.items():
        target.add_argument(option, type=budget, metavar="FRACTION", help=told)
    target.add_argument(
        "--sparsity", type=sparsity, metavar="FRACTION", help="instead: fraction of the units to remove"
    )


def override(text: str) -> tuple[str | int, float]:
    """Read ``encoder.*=0.3``, or ``4=0.3``.

    Raises:
        argparse.ArgumentTypeError: There is no name, or no fraction after it.
    """
    group, _, fraction = text.rpartition("=")
    if not group:
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUP=FRACTION")
    return int(group) if group.isdecimal() else group, sparsity(fraction)


def _multiple(text: str) -> int | str:
    """A number, or ``auto``."""
    return text if text == "auto" else count(text)


def _plan(model: nn.Module, inputs: Inputs, options: argparse.Namespace) -> ShrinkPlan:
    """Choose the units that go."""
    given = _budgets(options)
    coupling = secateur.analyze(model, inputs, ignore=options.ignore)
    return secateur.plan_shrink(
        model,
        inputs,
        sparsity=options.sparsity,
        budget=Budget(**given) if given else None,
        score=library.UNIT_SCORES[options.score],
        scope=options.scope,
        round_to=options.round_to,
        min_units=options.min_units,
        overrides={**_kept(coupling, options.keep), **dict(options.override)},
        coupling=coupling,
    )


def _budgets(options: argparse.Namespace) -> dict[str, float]:
    """The budgets that are given."""
    limits = {name: getattr(options, name) for name in ("macs", "params", "latency")}
    return {name: value for name, value in limits.items() if value is not None}


def _check_target(options: argparse.Namespace) -> None:
    """Refuse to guess how much goes.

    Raises:
        UsageError: Nothing says it, or two things do.
    """
    budgets = _budgets(options)
    if not budgets and options.sparsity is None:
        raise UsageError("nothing says how much is to go.", fix="--macs 0.5, --params 0.5 or --sparsity 0.3")
    if budgets and options.sparsity is not None:
        raise UsageError("budgets and --sparsity both say how much is to go.", fix="--macs 0.5, or --sparsity 0.3")


def _kept(coupling: Coupling, kinds: list[str]) -> Overrides:
    """Overrides by which the groups of some kinds lose nothing.

    Raises:
        InvalidInputError: No group is of one of these kinds.
    """
    there = {group.kind for group in coupling.groups}
    for kind in kinds:
        if kind not in there:
            raise InvalidInputError(f"the model has no units of the kind {kind!r}.", there_are=", ".join(sorted(there)))
    return {number: 0.0 for number, group in enumerate(coupling.groups) if group.kind in kinds}


def _write_weights(model: nn.Module, config: Any, inputs: Inputs, folder: Path, options: argparse.Namespace) -> bool:
    """Write the smaller model; say whether a config describes it."""
    if options.model.source == "hf":
        return library.save_pretrained(model, folder, inputs, config=config, force=True)
    secateur.save(model, folder / WEIGHTS)
    return False


def _show(screen: Screen, plan: ShrinkPlan, options: argparse.Namespace, files: list[str]) -> None:
    """The tables for people."""
    groups = table(f"{options.model}: units", "group", "kind", "before", "after", sides="llrr")
    for group in plan.groups:
        groups.add_row(group.name, group.kind, f"{group.before:,}", f"{group.after:,}")
    screen.console.print(groups)
    costs = table("costs", "", "before", "after", "left", sides="lrrr")
    for name, (before, after) in _costs(plan).items():
        costs.add_row(name.replace("_", " "), _count(before), _count(after), f"{after / (before or 1):.1%}")
    screen.console.print(costs)
    for line in plan.kept_whole:
        screen.console.print(f"kept whole: {line}")
    if options.verify:
        screen.console.print(f"verified: {_VERIFIED}")
    screen.console.print(f"{options.out}: {', '.join(files)}")


def _count(cost: float) -> str:
    """A cost: a whole number, or seconds."""
    return f"{cost:,}" if isinstance(cost, int) else f"{cost:.3g}"
