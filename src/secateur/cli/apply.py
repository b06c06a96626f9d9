"""``secateur apply``: a plan carried out on a checkpoint, without the model, a few rows of one tensor at a time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch

from secateur import ShrinkPlan
from secateur._errors import UnsupportedError
from secateur._files import refuse_place
from secateur.checkpoints import Checkpoint, Cut, cut_checkpoint, open_checkpoint
from secateur.cli.screen import Screen
from secateur.shrink.sources import is_saved_model, plan_texts, refuse_other_kinds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "cuts_of"]


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``apply`` to the command line."""
    parser = commands.add_parser(
        "apply",
        help="cut a checkpoint as a plan says, without the model",
        description="Cuts the tensors of a safetensors file, or of an index or folder of several, as a plan says that "
        "secateur shrink or ShrinkPlan.save has written. Never more than a part of one tensor is in memory. "
        "The plan goes into the header, so that secateur.load_ makes the model as small, heads and all.",
    )
    parser.add_argument("plan", metavar="PLAN", help="plan.safetensors")
    parser.add_argument("file", metavar="FILE", help="file, index or folder of the full model's weights")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write; a folder for an index")
    parser.add_argument("--force", action="store_true", help="replace what is there already")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Cut, and write."""
    refuse_place(options.out, force=options.force)
    plan, checkpoint = ShrinkPlan.load(options.plan), open_checkpoint(options.file)
    cuts = cuts_of(plan, checkpoint)
    cut_checkpoint(checkpoint, cuts, options.out, force=options.force, told=plan_texts(plan, checkpoint))
    after = open_checkpoint(options.out)
    count, before, left = len(list(checkpoint)), checkpoint.num_bytes, after.num_bytes
    screen.console.print(f"{len(cuts)} of {count} tensors cut, {before:,} -> {left:,} bytes")
    screen.console.print(options.out)
    figures = {"tensors": count, "cut": len(cuts), "bytes": {"before": before, "after": left}}
    return {"plan": options.plan, "file": options.file, "out": options.out, **figures}


def cuts_of(plan: ShrinkPlan, checkpoint: Checkpoint) -> dict[str, Cut]:
    """What a plan does to which tensors of a checkpoint.

    Args:
        plan: The plan.
        checkpoint: Weights of the model that it was made for.

    Raises:
        ShapeError: A tensor is missing or has another shape: another architecture, or the plan was applied already.
        UnsupportedError: The file records sizes of modules, which the plan says nothing of without the model.
    """
    refuse_other_kinds(checkpoint)
    if is_saved_model(checkpoint):
        raise UnsupportedError(
            f"{checkpoint.shards[0].path} was written by secateur.save: it records sizes of the model's modules too, "
            "which change with the model only.",
            fix="secateur.load_(model, path), plan.apply_(model), secateur.save(model, path)",
        )
    shapes = {stored.name: torch.empty(stored.shape, device="meta") for stored in checkpoint}
    plan.apply_to(shapes)
    first_names = {name: first for first in plan.shapes for name in (first, *plan.fit.tied.get(first, ()))}
    return {
        name: Cut(plan.keep.get(first, {}), plan.bias_changes.get(first))
        for name, first in first_names.items()
        if name in shapes
    }
