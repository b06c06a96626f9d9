"""The command line: one file a subcommand, which parses, calls the library and prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from secateur._progress import without_progress
from secateur.cli.commands import parser
from secateur.cli.screen import Screen, told
from secateur.cli.usage import UsageError

__all__ = ["main"]

_INTERRUPTED = 130  # what shells give for a program that ^C has ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``secateur``.

    Args:
        arguments: Words after the program's name; those of this process if left out.

    Returns:
        The exit status: 0, or 1 after an error, which is printed without a traceback.

    Raises:
        SystemExit: With 2, after wrong usage.
    """
    options = parser().parse_args(arguments)
    screen = Screen(json=options.json)
    try:
        with screen.kept_clean(), without_progress() if options.quiet else nullcontext():
            found = options.run(options, screen)
        screen.show_json(found)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except UsageError as error:
        options.refuse(told(error))
    except SystemExit as end:
        if end.code:
            raise  # the status of a script that was watched, or the one that code of the user's has chosen
        print("secateur: the model's code has ended the program before the command was done", file=sys.stderr)
        return 1
    except Exception as error:  # raised by the user's own model, most often; a command has no caller who could catch it
        return _failed(error, options)
    return 0


def _failed(error: Exception, options: argparse.Namespace) -> int:
    """Say what went wrong."""
    if options.traceback:
        raise error
    print(f"secateur: {told(error)}", file=sys.stderr)
    return 1
