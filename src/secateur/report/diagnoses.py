"""The part of a report that is about what the doctor has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from secateur._errors import InvalidInputError
from secateur.report.figures import Note, Notes, Section

__all__ = ["findings_section"]

_PARTS = ("why", "effect", "fix")


def findings_section(findings: object) -> Section:
    """What the doctor has found, errors first.

    Args:
        findings: The result of `secateur.diagnose`, what `secateur.watch` has found, or several findings.

    Raises:
        InvalidInputError: They are none.
    """
    notes = tuple(map(_note, _found(findings)))
    text = "" if notes else "The doctor has found nothing wrong."
    return Section("What the doctor has found", (Notes(notes),) if notes else (), text)


def _found(findings: object) -> list[Mapping[str, Any]]:
    """The findings as plain values."""
    held = getattr(findings, "findings", findings)
    if isinstance(held, Iterable) and not isinstance(held, str | bytes | Mapping):
        plain: list[Mapping[str, Any]] = [getattr(finding, "to_dict", dict)() for finding in held]
        if all({"code", "severity", "what", *_PARTS} <= finding.keys() for finding in plain):
            return plain
    raise InvalidInputError(
        f"{type(findings).__name__} holds no findings.", fix="findings=secateur.diagnose(model, optimizer)"
    )


def _note(finding: Mapping[str, Any]) -> Note:
    """One finding."""
    step = finding.get("step")
    at = "" if step is None else f" (before step {step:,})"
    more = tuple((label, finding[label]) for label in _PARTS)
    return Note(f"{finding['severity']} {finding['code']}{at}:", finding["what"], more)
