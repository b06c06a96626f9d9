"""All subcommands in one parser."""

from __future__ import annotations

import argparse

import secateur
from secateur.cli import analyze, apply, completion, compress, demo, doctor, inspect, profile, prune, shrink

__all__ = ["parser"]

COMMANDS = (demo, doctor, analyze, shrink, prune, compress, profile, inspect, apply, completion)
"""The subcommands in the order of ``secateur --help``: each has ``add_parser(commands)``, and gives its parser a `run`.

``run(options, screen)`` prints for people on ``screen.console``, and returns what ``--json`` prints: plain values.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    whole = argparse.ArgumentParser(prog="secateur", description="Prune PyTorch models while they go on training.")
    whole.add_argument("--version", action="version", version=f"secateur {secateur.__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for command in COMMANDS:
        command.add_parser(commands)
    for each in commands.choices.values():
        output = each.add_argument_group("output")
        if each.get_default("json") is None:  # `doctor` takes a file: standard output is the script's
            output.add_argument("--json", action="store_true", help="print one JSON document, and nothing else")
        output.add_argument("--quiet", action="store_true", help="show no progress")
        output.add_argument("--traceback", action="store_true", help="let errors show where they were raised")
        each.set_defaults(refuse=each.error)
    return whole
