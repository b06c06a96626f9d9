"""``secateur prune``: single weights set to zero, by one of the scores that need no data."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

import secateur
from secateur import Masks, allocation, patterns, scores
from secateur._errors import InvalidInputError
from secateur._files import refuse_place, written_folder
from secateur._progress import stages
from secateur.cli.inputs import input_shape, made_inputs
from secateur.cli.models import add_model, load_model
from secateur.cli.numbers import sparsity
from secateur.cli.screen import Screen, table
from secateur.cli.usage import UsageError
from secateur.shrink.hub import write_folder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "pattern"]

_SYNFLOW = "synflow"
_ALLOCATIONS = {name.rstrip("_"): each for name, each in allocation.ALLOCATIONS.items() if name != "PerTensor"}
_GROUPS = re.compile(r"(\d+):(\d+)")
_BLOCK = re.compile(r"(\d+)x(\d+)")
WEIGHTS = "model.safetensors"


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``prune`` to the command line."""
    parser = commands.add_parser(
        "prune",
        help="set single weights to zero, at once and without data",
        description="Sets the least important weights to zero and writes the weights and the masks "
        "to a folder, of hf: with its config. secateur.load_ holds the zeros while the model goes on training.",
    )
    add_model(parser)
    parser.add_argument("--sparsity", type=sparsity, metavar="FRACTION", help="fraction of the weights that go, as 0.9")
    parser.add_argument(
        "--pattern",
        type=pattern,
        default=patterns.Unstructured(),
        metavar="PATTERN",
        help="which zeros are allowed: unstructured (default), 2:4, 4x4 (blocks), rows, columns",
    )
    names = [*scores.SCORES, _SYNFLOW]
    parser.add_argument(
        "--score", choices=names, default="magnitude", help="what a weight is worth (default magnitude)"
    )
    parser.add_argument(
        "--allocation",
        choices=[*_ALLOCATIONS],
        help="how zeros are shared out among tensors (default uniform; global for synflow, which is made for it)",
    )
    parser.add_argument("--include", metavar="GLOB", action="append", help="parameters to prune; all weights otherwise")
    parser.add_argument("--exclude", metavar="GLOB", action="append", help="parameters that are left out")
    parser.add_argument("--input", metavar="SIZES", type=input_shape, action="append", help="input, for synflow only")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--force", action="store_true", help="replace files in a folder that is there already")
    parser.set_defaults(run=run)


def pattern(text: str) -> patterns.Pattern:
    """Read a pattern.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        if groups := _GROUPS.fullmatch(text):
            return patterns.NM(n=int(groups[1]), m=int(groups[2]))
        if block := _BLOCK.fullmatch(text):
            return patterns.Block((int(block[1]), int(block[2])))
        return patterns.PATTERNS[text]
    except KeyError:
        known = ", ".join(patterns.PATTERNS)
        raise argparse.ArgumentTypeError(f"{text!r} is no pattern; there are {known}, and others like them") from None
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Choose the weights, and write."""
    refuse_place(options.out, force=options.force)
    with stages(4) as begin:
        begin("loading")
        model = load_model(options.model, dict(options.arg), checkpoint=options.checkpoint, seed=options.seed)
        begin("scoring")
        score = _score(model, options)
        begin("choosing weights")
        masks = secateur.prune_(
            model,
            sparsity=options.sparsity,
            score=score,
            allocation=_ALLOCATIONS[options.allocation or ("global" if options.score == _SYNFLOW else "uniform")],
            pattern=options.pattern,
            include=options.include,
            exclude=options.exclude,
        )
        begin("writing")
        with written_folder(options.out, force=options.force) as folder:
            if options.model.source == "hf":
                write_folder(model, folder)
            else:
                secateur.save(model, folder / WEIGHTS)
            files = sorted(file.name for file in folder.iterdir())
        found = _figures(masks)
    _show(screen, options, found, files)
    return {"model": str(options.model), "pattern": repr(options.pattern), **found, "out": options.out, "files": files}


def _score(model: nn.Module, options: argparse.Namespace) -> scores.Score | dict[str, Tensor]:
    """The score that is asked for."""
    if options.score != _SYNFLOW:
        return scores.SCORES[options.score]
    if not options.input or options.sparsity is None:
        raise UsageError("synflow runs the model on ones.", fix="--input 1x3x224x224 --sparsity 0.9")
    inputs = made_inputs(model, options.input, seed=options.seed)
    return scores.synflow(model, inputs, sparsity=options.sparsity, include=options.include)


def _figures(masks: Masks) -> dict[str, Any]:
    """What the masks come to, as plain values."""
    tensors = {name: masks[name] for name in masks}
    return {
        "sparsity": masks.sparsity(),
        "zeros": masks.num_zeros(),
        "tensors": {
            name: {"shape": list(mask.shape), "zeros": int((~mask).sum()), "sparsity": masks.sparsity(name)}
            for name, mask in tensors.items()
        },
        "skipped": dict(masks.skipped),
    }


def _show(screen: Screen, options: argparse.Namespace, found: dict[str, Any], files: list[str]) -> None:
    """The tables for people."""
    shown = table(f"{options.model}: {options.pattern!r}", "weight", "shape", "zeros", "sparsity", sides="llrr")
    for name, each in found["tensors"].items():
        shown.add_row(name, " x ".join(map(str, each["shape"])), f"{each['zeros']:,}", f"{each['sparsity']:.2%}")
    screen.console.print(shown)
    for name, why in found["skipped"].items():
        screen.console.print(f"skipped: {name}: {why}")
    screen.console.print(f"{found['zeros']:,} zeros, {found['sparsity']:.2%} of what was looked at")
    screen.console.print(f"{options.out}: {', '.join(files)}")
