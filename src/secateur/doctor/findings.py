"""What the doctor says: one finding, and the list of all of them, printable as text and available as data."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from secateur.doctor.wording import listed

__all__ = ["Finding", "Findings"]

Severity = Literal["error", "warning"]

_WIDTH = 112
_INDENT = 10
_CODE = re.compile(r"`[^`]*`")
_UNBROKEN = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a training setup.

    Args:
        code: What kind of thing, ``"stale-optimizer-reference"``; the key of the check that found it.
        names: Dotted names of the tensors or modules that it is about, in the model's order.
        what: What is wrong, in one sentence.
        why: How such a thing comes about: by which kind of line.
        effect: What it does to training.
        fix: The line that mends it, to be pasted; further lines are alternatives.
        repairable: Whether `relink_` mends it.
        severity: ``"error"`` where training does something else than what was meant, ``"warning"`` where that depends
            on what was meant.
        data: The facts behind the sentences, as numbers, strings, lists and dicts.
        step: Number of the optimizer step before which `watch` noticed it (the first step is 1); None outside `watch`.

    Example:
        >>> print(Finding("lr-zero", ("0.weight",), "the learning rate is 0.", "lr=0", "nothing moves.", "lr=0.1"))
        error lr-zero: the learning rate is 0.
          why:    lr=0
          effect: nothing moves.
          fix:    lr=0.1
    """

    code: str
    names: tuple[str, ...]
    what: str
    why: str
    effect: str
    fix: str
    repairable: bool = False
    severity: Severity = "error"
    data: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None

    def __str__(self) -> str:
        """The finding as text."""
        at = f" (before step {self.step})" if self.step is not None else ""
        lines = [textwrap.fill(f"{self.severity} {self.code}{at}: {self.what}", _WIDTH, subsequent_indent="  ")]
        lines += [_prose(label, text) for label, text in (("why:", self.why), ("effect:", self.effect)) if text]
        return "\n".join(lines + ([_code("fix:", self.fix)] if self.fix else []))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values that ``json.dumps`` takes."""
        return {
            "code": self.code,
            "names": list(self.names),
            "what": self.what,
            "why": self.why,
            "effect": self.effect,
            "fix": self.fix,
            "repairable": self.repairable,
            "severity": self.severity,
            "data": dict(self.data),
            "step": self.step,
        }


def _prose(label: str, text: str) -> str:
    """A labelled part, each of its lines wrapped, but never inside `code`."""
    text = _CODE.sub(lambda code: code[0].replace(" ", _UNBROKEN), text)
    wrapped = [textwrap.fill(line, _WIDTH - _INDENT, break_on_hyphens=False) for line in text.split("\n")]
    return _code(label, "\n".join(wrapped).replace(_UNBROKEN, " "))


def _code(label: str, text: str) -> str:
    """A labelled part, its lines as they are."""
    return f"  {label:{_INDENT - 2}}" + text.replace("\n", "\n" + " " * _INDENT)


class Findings(Sequence[Finding]):
    """Everything that was found, errors first; empty, and so false, where the setup is healthy.

    Args:
        findings: The findings in any order.

    Example:
        >>> found = Findings([Finding("lr-zero", ("0.weight",), "the learning rate is 0.", "", "", "lr=0.1")])
        >>> found, bool(found), "lr-zero" in found.codes
        (Findings(lr-zero: 0.weight), True, True)
        >>> print(Findings())
        no findings
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._found = tuple(sorted(findings, key=lambda finding: finding.severity != "error"))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes that occur, each once."""
        return tuple(dict.fromkeys(finding.code for finding in self._found))

    def of(self, code: str) -> Findings:
        """The findings with this code."""
        return Findings(finding for finding in self._found if finding.code == code)

    def about(self, name: str) -> Findings:
        """The findings that name this tensor or module."""
        return Findings(finding for finding in self._found if name in finding.names)

    def to_dict(self) -> dict[str, Any]:
        """``{"findings": […]}`` of plain values that ``json.dumps`` takes."""
        return {"findings": [finding.to_dict() for finding in self._found]}

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Findings: ...
    def __getitem__(self, index: int | slice) -> Finding | Findings:
        """One finding, or some of them."""
        return Findings(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        """Each finding, errors first."""
        return iter(self._found)

    def __eq__(self, other: object) -> bool:
        """Whether the same was found."""
        return isinstance(other, Findings) and self._found == other._found

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """All findings as text."""
        return "\n".join(map(str, self._found)) or "no findings"

    def __repr__(self) -> str:
        """Codes and names on one line."""
        return f"Findings({'; '.join(f'{finding.code}: {listed(finding.names)}' for finding in self._found)})"
