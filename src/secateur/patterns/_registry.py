"""The table of patterns."""

from __future__ import annotations

from secateur.patterns._block import Block
from secateur.patterns._channel import Channel
from secateur.patterns._nm import NM
from secateur.patterns._pattern import Pattern
from secateur.patterns._unstructured import Unstructured

__all__ = ["PATTERNS"]

PATTERNS: dict[str, Pattern] = {
    "unstructured": Unstructured(),
    "2:4": NM(n=2, m=4),
    "4x4": Block((4, 4)),
    "16x1": Block((16, 1)),
    "rows": Channel(dim=0),
    "columns": Channel(dim=1),
}
"""Patterns by name, with their usual settings; the contract tests run over this table."""
