"""``secateur profile``: sizes, work and speed of one or several models, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

import secateur
from secateur._progress import stages
from secateur.cli.inputs import add_inputs, made_inputs
from secateur.cli.models import add_model, load_model
from secateur.cli.numbers import duration
from secateur.cli.screen import Screen
from secateur.cli.threads import add_threads
from secateur.cli.usage import UsageError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_NONE = "-"


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``profile`` to the command line."""
    parser = commands.add_parser(
        "profile",
        help="measure parameters, zeros, MACs, bytes and time of one or several models",
        description="Measures one model, or several side by side on the same inputs, timed in turns. Models are "
        "compared with the first one.",
    )
    add_model(parser, several=True)
    add_inputs(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        action="append",
        default=[],
        help="weights; once for each model, - for one that has random weights",
    )
    parser.add_argument(
        "--seconds", type=duration, default=1.0, help="how long each model is timed (default 1; 0: not)"
    )
    add_threads(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Measure."""
    files = options.checkpoint or [_NONE] * len(options.model)
    if len(files) != len(options.model):
        raise UsageError(
            "each model has a checkpoint of its own, or none has.",
            models=len(options.model),
            checkpoints=len(files),
            fix="--checkpoint - for a model with random weights",
        )
    with stages(2) as begin:
        begin("loading")
        models = _loaded(options, files)
        inputs = made_inputs(next(iter(models.values())), options.input, seed=options.seed)
        begin("measuring")
        found = secateur.profile(models, inputs, seconds=options.seconds, threads=options.threads)
    screen.console.print(repr(found), soft_wrap=True)
    return found.to_dict()


def _loaded(options: argparse.Namespace, files: Sequence[str]) -> dict[str, nn.Module]:
    """The models by what tells them apart."""
    models: dict[str, nn.Module] = {}
    for name, file in zip(options.model, files, strict=True):
        shown = str(name) if file == _NONE else f"{name} {file}"
        label = shown if shown not in models else f"{shown} ({len(models) + 1})"
        checkpoint = None if file == _NONE else file
        models[label] = load_model(name, dict(options.arg), checkpoint=checkpoint, seed=options.seed)
    return models
