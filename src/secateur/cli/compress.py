"""``secateur compress``: a model with many zeros made smaller and faster for this machine's CPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import nn

import secateur
from secateur import Masks, runtime
from secateur._errors import InvalidInputError
from secateur._files import refuse_place, written_file
from secateur._progress import stages
from secateur.checkpoints import open_checkpoint
from secateur.cli.inputs import add_inputs, made_inputs
from secateur.cli.models import add_model, load_model
from secateur.cli.screen import Screen
from secateur.cli.threads import add_threads, using_threads

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_VALUES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``compress`` to the command line."""
    parser = commands.add_parser(
        "compress",
        help="pack a model with many zeros, for inference on this machine's CPU",
        description="Gives each layer the format that is fastest with the inputs' sizes, by the clock, and writes one "
        "file that secateur.load_compressed reads. Layers that nothing makes faster stay dense.",
    )
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "--masks", metavar="FILE", help="safetensors of Masks(model).state_dict(), if zeros are not yet there"
    )
    parser.add_argument("--values", choices=[*_VALUES], default="float32", help="dtype of packed values")
    parser.add_argument("--margin", type=float, default=0.05, help="gain from which a format is taken (default 0.05)")
    parser.add_argument(
        "--format",
        choices=sorted({*runtime.LINEAR_FORMATS, *runtime.CONV_FORMATS}),
        action="append",
        help="a format to try, all otherwise; may be repeated",
    )
    add_threads(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Compress, and write."""
    refuse_place(options.out, force=options.force)
    with stages(3) as begin:
        begin("loading")
        model = load_model(options.model, dict(options.arg), checkpoint=options.checkpoint, seed=options.seed)
        inputs = made_inputs(model, options.input, seed=options.seed)
        if options.masks:
            _put_masks(model, options.masks)
        begin("choosing formats")
        with using_threads(options.threads):
            fast = secateur.compress(
                model, inputs, values=_VALUES[options.values], margin=options.margin, formats=options.format
            )
        begin("writing")
        with written_file(options.out, force=options.force) as path:
            fast.save(path)
    screen.console.print(str(fast.report), soft_wrap=True)
    screen.console.print(options.out)
    report = {} if fast.report is None else fast.report.to_dict()
    return {"model": str(options.model), **report, "out": options.out}


def _put_masks(model: nn.Module, path: str) -> None:
    """Zero what masks say."""
    open_checkpoint(path)
    try:
        Masks(model).load_state_dict(safetensors.torch.load_file(path))
    except InvalidInputError as error:
        error.add_note(f"as {path} was loaded")
        raise
