"""``secateur doctor``: a user's own script, run unchanged and watched."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from secateur._files import refuse_place, written_file
from secateur.cli.screen import Screen, told
from secateur.doctor.attending import Attendant
from secateur.doctor.scripts import refuse_missing, run_script, user_traceback
from secateur.doctor.sightings import Sighting

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]

_INTERRUPTED = 130
_MOST = 6  # lines shown of those that one finding is about


def add_parser(commands: _SubParsersAction[Any]) -> None:
    """Add ``doctor`` to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="run a training script and say at which line it stops learning",
        usage="secateur doctor [--json FILE] [--quiet] (SCRIPT | -m MODULE) [--] [ARGUMENT ...]",
        description="Runs a script unchanged and watches it. When a parameter is replaced, an optimizer or a graph is "
        "left with something old, masks drift or nothing learns, it says so on standard error, with the lines. "
        "Standard output, errors and the exit status are the script's own. Options of the doctor come before SCRIPT.",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the script")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.add_argument("--json", dest="findings", metavar="FILE", help="write the findings to a file, as JSON")
    parser.set_defaults(run=run, json=False)


def run(options: argparse.Namespace, screen: Screen) -> None:
    """Run the script.

    Raises:
        SystemExit: The script's own exit status, where that is not 0.
    """
    refuse_missing(options.script, is_module=options.is_module)
    if options.findings is not None:
        refuse_place(options.findings, force=True)
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    sightings: list[Sighting] = []

    def tell(sighting: Sighting) -> None:
        sightings.append(sighting)
        _say(_shown(sighting))

    attendant = Attendant(tell)
    try:
        status = _status(attendant, options, arguments)
    finally:
        if options.findings is not None:
            _write(options.findings, options.script, attendant, sightings)
    if attendant.failure is not None:
        _say(f"secateur doctor: the watch ended early, the script did not: {told(attendant.failure)}")
    if not options.quiet:
        _say(_summary(attendant.num_steps, len(sightings)))
    if status:
        raise SystemExit(status)


def _status(attendant: Attendant, options: argparse.Namespace, arguments: list[str]) -> int:
    """The exit status of the script, after what Python prints about it."""
    try:
        with attendant:
            alive = run_script(options.script, arguments, is_module=options.is_module)
        del alive
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        _say(str(end.code))
        return 1
    except BaseException as error:  # as Python does when a script ends with it
        trace = user_traceback(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _shown(sighting: Sighting) -> str:
    """A finding and its lines."""
    lines = [f"secateur doctor: {sighting.subject}", str(sighting.finding)]
    places = [str(place) for place in sighting.lines[:_MOST]]
    if len(sighting.lines) > _MOST:
        places.append(f"and {len(sighting.lines) - _MOST} more lines")
    lines += [f"  {'line:' if not number else '':8}{place}" for number, place in enumerate(places)]
    if sighting.seen is not None:
        lines.append(f"  {'seen:':8}{sighting.seen}")
    return "\n".join(lines)


def _summary(steps: int, count: int) -> str:
    """The last line."""
    findings = f"{count or 'no'} finding{'' if count == 1 else 's'}"
    if not steps:
        return f"secateur doctor: no optimizer of torch.optim has made a step; {findings}"
    return f"secateur doctor: {steps:,} optimizer step{'' if steps == 1 else 's'}, {findings}"


def _write(file: str, script: str, attendant: Attendant, sightings: list[Sighting]) -> None:
    """The findings as JSON, in whole or not at all."""
    found = {"script": script, "steps": attendant.num_steps, "findings": [each.to_dict() for each in sightings]}
    with written_file(file) as path:
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)
