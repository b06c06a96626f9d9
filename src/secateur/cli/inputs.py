"""``--input``: example inputs, made up from their shapes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur._passes import Inputs
from secateur.cli.usage import UsageError

__all__ = ["InputShape", "add_inputs", "input_shape", "made_inputs"]

_FORM = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?:(?P<kind>float|ids|ones):)?(?P<sizes>\d+(?:x\d+)*)")
_FEW_IDS = 2  # of a model without a table of tokens


@dataclass(frozen=True)
class InputShape:
    """One input: the argument that it is for, if it has a name; what is in it; and its sizes."""

    name: str
    kind: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        """As it may be written."""
        kind = "" if self.kind == "float" else f"{self.kind}:"
        return f"{self.name and self.name + '='}{kind}{'x'.join(map(str, self.sizes))}"


def input_shape(text: str) -> InputShape:
    """Read ``1x3x224x224``, ``ids:1x128`` or ``attention_mask=ones:1x128``.

    Raises:
        argparse.ArgumentTypeError: It is of none of the forms.
    """
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no input; write 1x3x224x224 for random numbers, ids:1x128 for token ids, ones:1x128 for a "
            "mask of ones, and name=… in front for a keyword argument"
        )
    return InputShape(parts["name"] or "", parts["kind"] or "float", tuple(map(int, parts["sizes"].split("x"))))


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add ``--input`` to a parser."""
    parser.add_argument(
        "--input",
        metavar="SIZES",
        type=input_shape,
        action="append",
        required=True,
        help="shape of an example input: 1x3x224x224 (random numbers), ids:1x128 (token ids), ones:1x128; "
        "name=ids:1x128 for a keyword argument; may be repeated",
    )


def made_inputs(model: nn.Module, shapes: Sequence[InputShape], *, seed: int) -> Inputs:
    """Example inputs for a model.

    Args:
        model: The model, whose dtype floating-point inputs have, and whose smallest embedding token ids are for.
        shapes: The inputs.
        seed: Seed of what is in them.

    Returns:
        A tuple of arguments, or keyword arguments.

    Raises:
        UsageError: Some have names and some have none, or two have the same.
    """
    names = [shape.name for shape in shapes]
    if any(names) and (not all(names) or len({*names}) < len(names)):
        raise UsageError(
            "either all inputs have names of their own or none has one.",
            inputs=", ".join(n or "no name" for n in names),
        )
    generator = torch.Generator().manual_seed(seed)
    tensors = [_tensor(model, shape, generator) for shape in shapes]
    return dict(zip(names, tensors, strict=True)) if any(names) else tuple(tensors)


def _tensor(model: nn.Module, shape: InputShape, generator: torch.Generator) -> Tensor:
    """One input."""
    if shape.kind == "ones":
        return torch.ones(shape.sizes, dtype=torch.int64)
    if shape.kind == "ids":
        tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
        return torch.randint(min(tables, default=_FEW_IDS), shape.sizes, generator=generator)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.randn(shape.sizes, generator=generator).to(dtype)
