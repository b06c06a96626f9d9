"""Wrong usage that only several options together show; argparse finds what one of them shows."""

from __future__ import annotations

from secateur._errors import InvalidInputError

__all__ = ["UsageError"]


class UsageError(InvalidInputError):
    """The command's options do not go together, whatever the model: status 2, after the command's usage."""
