"""The table of patterns."""

from __future__ import annotations

from secateur.patterns._channel import Channel
from secateur.patterns._pattern import Pattern
from secateur.patterns._unstructured import Unstructured

__all__ = ["PATTERNS"]

PATTERNS: dict[str, Pattern] = {
    "unstructured": Unstructured(),
    "rows": Channel(dim=0),
    "columns": Channel(dim=1),
}
"""Patterns by name, with their usual settings; the contract tests run over this table."""
