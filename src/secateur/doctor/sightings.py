"""What is told when something is noticed in a running program: the finding, and the user's lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secateur.doctor.findings import Finding
from secateur.doctor.places import Place

__all__ = ["Sighting"]


@dataclass(frozen=True)
class Sighting:
    """A finding, and the lines that it is about.

    Args:
        finding: The finding.
        subject: The classes of the model and the optimizer.
        seen: The user's line at which it was noticed.
        lines: The user's lines that touched the tensors it names last, each once.
    """

    finding: Finding
    subject: str
    seen: Place | None
    lines: tuple[Place, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: those of the finding, and where."""
        places = {"seen": self.seen.to_dict() if self.seen else None, "lines": [line.to_dict() for line in self.lines]}
        return {**self.finding.to_dict(), "subject": self.subject, **places}
