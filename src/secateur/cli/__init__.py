"""The command line: one file a subcommand, which parses, calls the library and prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from secateur._errors import SecateurError
from secateur.cli import demo

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``secateur``.

    Args:
        arguments: Words after the program's name; those of this process if left out.

    Returns:
        The exit status: 0, or 1 after an error, which is printed without a traceback. Wrong usage exits with 2.
    """
    parser = argparse.ArgumentParser(prog="secateur", description="Prune PyTorch models while they go on training.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options, Console())
    except SecateurError as error:
        print(f"secateur: {error}", file=sys.stderr)
        return 1
    return 0
