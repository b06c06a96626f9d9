"""Frameworks that may not be installed."""

from __future__ import annotations

from types import ModuleType

from secateur import _compat
from secateur._errors import SecateurError

__all__ = ["NotInstalledError", "needed"]


class NotInstalledError(SecateurError, ImportError):
    """A framework that secateur does not install by itself is not there."""


def needed(name: str, extra: str) -> ModuleType:
    """Import a module of a framework.

    Args:
        name: Its dotted name.
        extra: The extra of secateur that brings it.

    Raises:
        NotInstalledError: It is not installed.

    Example:
        >>> needed("no_such_framework", "lightning")
        Traceback (most recent call last):
        ...
        secateur.integrations.needed.NotInstalledError: no_such_framework is not installed.
          fix:   pip install 'secateur[lightning]'
    """
    module = _compat.optional(name)
    if module is None:
        raise NotInstalledError(f"{name} is not installed.", fix=f"pip install 'secateur[{extra}]'")
    return module
