"""``secateur inspect``: what the tensors of a file are like, read a few rows at a time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from secateur import checkpoints
from secateur.checkpoints import Inspection
from secateur.cli.screen import Screen, table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``inspect`` to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="show sparsity, patterns of zeros, dead channels and tied tensors of a file",
        description="Looks at each tensor of a safetensors file, of an index or folder of several, or of a file of "
        "torch.save that holds nothing but tensors and plain values. Nothing is unpickled.",
    )
    parser.add_argument("file", metavar="FILE", help="file, index or folder")
    parser.add_argument("--sparse", action="store_true", help="show only tensors with zeros")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Look at the file."""
    found = checkpoints.inspect(options.file)
    _show(screen, options, found)
    return {
        "file": options.file,
        "entries": found.entries,
        "zeros": found.zeros,
        "sparsity": found.sparsity,
        "tensors": [tensor.to_dict() for tensor in found.tensors if tensor.zeros or not options.sparse],
        "tied": [list(names) for names in found.tied],
        "parts": found.parts,
    }


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
