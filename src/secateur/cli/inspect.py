"""``secateur inspect``: what is in a file of weights, a few rows at a time; and which file of the library's it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from secateur import ShrinkPlan, checkpoints
from secateur._files import headers_in
from secateur.checkpoints import Inspection
from secateur.cli.screen import Screen, table
from secateur.cli.shrink import plan_figures
from secateur.shrink import GrowPlan

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_KINDS = {
    "model": ("a model", "secateur.load_(model, {path!r}) loads it"),
    "compressed": ("a compressed model", "secateur.load_compressed({path!r}), with model=… if its code is its own"),
    "plan": ("a plan to shrink", "secateur apply {path} FILE --out FILE cuts the weights of the full model"),
    "grow plan": ("a plan to grow", "secateur.shrink.GrowPlan.load({path!r}).apply_(model) carries it out"),
    "ticket": ("a ticket", "secateur.tickets.Ticket.load({path!r}).apply_(model) puts it on a model"),
    "snapshot": (
        "a snapshot",
        "secateur.tickets.rewind_(model, secateur.tickets.Snapshot.load({path!r})) takes a model back to it",
    ),
}
"""Kinds of files of the library -> what one is, and what to do with it."""

_WEIGHTS = ("weights", "model")
_PLANS: dict[str, type[ShrinkPlan] | type[GrowPlan]] = {"plan": ShrinkPlan, "grow plan": GrowPlan}


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``inspect`` to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="show sparsity, patterns of zeros, dead channels and tied tensors of a file",
        description="Looks at each tensor of a safetensors file, of an index or folder of several, or of a file of "
        "torch.save that holds nothing but tensors and plain values. Nothing is unpickled. Of a plan it shows what "
        "goes; of compressed models, tickets and snapshots what is in them and what to do with it.",
    )
    parser.add_argument("file", metavar="FILE", help="file, index or folder")
    parser.add_argument("--sparse", action="store_true", help="show only tensors with zeros")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Look at the file."""
    found = checkpoints.inspect(options.file)
    kind = _kind(found)
    if kind in _KINDS:
        what, use = _KINDS[kind]
        screen.console.print(f"{options.file} is {what}: {use.format(path=options.file)}", soft_wrap=True)
    about = {"file": options.file, "kind": kind}
    if kind in _PLANS:
        return about | _plan(screen, _PLANS[kind].load(options.file))
    if kind not in _WEIGHTS:
        return about | _packed(screen, options, found)
    _show(screen, options, found)
    return {
        **about,
        "entries": found.entries,
        "zeros": found.zeros,
        "sparsity": found.sparsity,
        "tensors": [tensor.to_dict() for tensor in found.tensors if tensor.zeros or not options.sparse],
        "tied": [list(names) for names in found.tied],
        "parts": found.parts,
    }


def _kind(found: Inspection) -> str:
    """What a file is mainly: one of `_KINDS`, or ``"weights"``."""
    headers = headers_in(found.metadata)
    kind = next((key for key in _KINDS if key in headers), "weights")  # a model may have a plan beside it
    return "grow plan" if kind == "plan" and "Grow" in headers[kind]["format"] else kind


def _plan(screen: Screen, plan: ShrinkPlan | GrowPlan) -> dict[str, Any]:
    """What a plan comes to."""
    screen.console.print(str(plan), soft_wrap=True)
    if isinstance(plan, ShrinkPlan):
        return plan_figures(plan)
    before, after = plan.parameters
    return {"parameters": {"before": before, "after": after}, "groups": [vars(group) for group in plan.groups]}


def _packed(screen: Screen, options: argparse.Namespace, found: Inspection) -> dict[str, Any]:
    """What is in a file whose zeros are not those of weights."""
    shown = table(options.file, "tensor", "dtype", "shape", "bytes", sides="lllr")
    for tensor in found.tensors:
        shown.add_row(tensor.name, tensor.dtype, " x ".join(map(str, tensor.shape)), f"{tensor.bytes:,}")
    screen.console.print(shown)
    total = sum(tensor.bytes for tensor in found.tensors)
    screen.console.print(f"{len(found.tensors):,} tensors, {total:,} bytes")
    tensors = [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": tensor.bytes}
        for tensor in found.tensors
    ]
    return {"bytes": total, "tensors": tensors}


def _show(screen: Screen, options: argparse.Namespace, found: Inspection) -> None:
    """The tables for people."""
    heads = ("tensor", "dtype", "shape", "sparsity", "patterns", "dead outputs", "dead inputs")
    shown = table(options.file, *heads, sides="lllrlrr")
    for tensor in found.tensors:
        if options.sparse and not tensor.zeros:
            continue
        shown.add_row(
            tensor.name,
            tensor.dtype,
            " x ".join(map(str, tensor.shape)),
            "?" if tensor.sparsity is None else f"{tensor.sparsity:.2%}",
            ", ".join(tensor.patterns),
            f"{tensor.dead_outputs:,}" if tensor.dead_outputs else "",
            f"{tensor.dead_inputs:,}" if tensor.dead_inputs else "",
        )
    screen.console.print(shown)
    for names in found.tied:
        screen.console.print(f"equal: {', '.join(names)}")
    for part, size in found.parts.items():
        screen.console.print(f"beside the weights: {part}, {size:,} bytes")
    total = sum(tensor.bytes for tensor in found.tensors)
    screen.console.print(
        f"{len(found.tensors):,} tensors, {total:,} bytes; {found.zeros:,} of {found.entries:,} entries are zero "
        f"({found.sparsity:.2%})"
    )
