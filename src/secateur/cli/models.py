"""The model that a command is about: ``package.module:factory``, or one of torchvision, timm, or a folder."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from secateur import _compat, load_
from secateur._errors import InvalidInputError
from secateur.cli.folders import load_folder
from secateur.cli.screen import told

__all__ = ["ModelName", "add_model", "keyword", "load_model", "model_name"]

_FORMS = "package.module:factory, torchvision:resnet50, timm:vit_tiny_patch16_224 or hf:FOLDER"
_EXTRAS = {"torchvision": "vision", "timm": "vision"}


@dataclass(frozen=True)
class ModelName:
    """What the user has written: where the model comes from, and what it is called there."""

    source: str
    name: str

    def __str__(self) -> str:
        """As it was written."""
        return f"{self.source}:{self.name}"


def model_name(text: str) -> ModelName:
    """Read MODEL.

    Raises:
        argparse.ArgumentTypeError: It is of none of the forms.
    """
    source, colon, name = text.partition(":")
    if not (source and colon and name):
        raise argparse.ArgumentTypeError(f"{text!r} is no model; write {_FORMS}")
    return ModelName(source, name)


def keyword(text: str) -> tuple[str, object]:
    """Read ``name=value``; the value is a Python literal, or the text itself if it is none.

    Raises:
        argparse.ArgumentTypeError: There is no name.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add MODEL and what belongs to it to a parser."""
    parser.add_argument("model", metavar="MODEL", type=model_name, nargs="+" if several else None, help=_FORMS)
    parser.add_argument(
        "--arg",
        metavar="NAME=VALUE",
        type=keyword,
        action="append",
        default=[],
        help="an argument of the factory, such as --arg num_classes=10; may be repeated",
    )
    if not several:
        parser.add_argument(
            "--checkpoint",
            metavar="FILE",
            help="safetensors file, index or folder with the weights; they are random otherwise (but those of hf:)",
        )
    parser.add_argument("--seed", type=int, default=0, help="seed of random weights and inputs (default 0)")


def load_model(name: ModelName, arguments: Mapping[str, object], *, checkpoint: str | None, seed: int) -> nn.Module:
    """Make the model, in evaluation mode.

    Args:
        name: Where it comes from.
        arguments: What is passed to its factory.
        checkpoint: Its weights; None for those that the factory gives it.
        seed: Seed of random weights.

    Raises:
        InvalidInputError: It does not import, the factory raises or makes no model, or the weights do not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(name, dict(arguments))
    if checkpoint is not None:
        load_(model, checkpoint)
    return model.eval()


def _made(name: ModelName, arguments: dict[str, Any]) -> nn.Module:
    """What the factory gives."""
    if name.source == "hf":
        if arguments:
            raise InvalidInputError(f"{name} has a config and takes no arguments.", arguments=", ".join(arguments))
        return load_folder(name.name)
    factory = _library(name) if name.source in _EXTRAS else _own(name)
    try:
        model = factory(**arguments)
    except Exception as error:  # whatever a factory raises
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise InvalidInputError(
            f"{name} raised {told(error)}", called_with=shown or "nothing", fix="--arg NAME=VALUE passes arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"{name} makes no model.", found=type(model).__name__, wanted="a torch.nn.Module")
    return model


def _library(name: ModelName) -> Callable[..., object]:
    """A factory of torchvision or timm, without weights of theirs."""
    module = _compat.optional("torchvision.models" if name.source == "torchvision" else "timm")
    if module is None:
        extra = _EXTRAS[name.source]
        raise InvalidInputError(f"{name} needs {name.source}.", fix=f"pip install 'secateur[{extra}]'")
    known = module.list_models()
    if name.name not in known and not (name.source == "timm" and module.is_model(name.name)):
        near = difflib.get_close_matches(name.name, known, n=8, cutoff=0.5)
        raise InvalidInputError(
            f"{name.source} has no model {name.name!r}.", there_are=", ".join(near) or f"{len(known)} others"
        )
    if name.source == "timm":
        return lambda **arguments: module.create_model(name.name, pretrained=False, **arguments)
    return lambda **arguments: module.get_model(name.name, weights=None, **arguments)


def _own(name: ModelName) -> Callable[..., object]:
    """A factory of the user's, from a module that imports from the folder that the command is given in."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name.source)
    except Exception as error:  # whatever a module raises as it is imported
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        is_it = absent is not None and f"{name.source}.".startswith(f"{absent}.")
        why = f"there is no module {absent!r}." if is_it else f"it raised {told(error)}"
        raise InvalidInputError(
            f"cannot import {name.source!r}: {why}", fix="run secateur where the module can be imported, or install it"
        ) from error
    for part in name.name.split("."):
        if not hasattr(found, part):
            there = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            raise InvalidInputError(
                f"{name.source!r} has no {name.name!r}.", there_are=", ".join(there[:8]) or "no functions or classes"
            )
        found = getattr(found, part)
    if not callable(found):
        raise InvalidInputError(f"{name} is no function or class.", found=type(found).__name__)
    factory: Callable[..., object] = found
    return factory
