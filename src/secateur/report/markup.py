"""HTML as text: the one place where words become safe to stand in a page."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Markup", "element", "joined"]

_VOID = frozenset(("circle", "line", "link", "meta", "polyline", "rect"))
"""Elements that are written without content here."""


class Markup(str):
    """Text that is HTML already, and is written as it is; any other text is escaped."""

    __slots__ = ()


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Several parts one after the other; those that are no markup are escaped.

    Example:
        >>> joined(["a < b", element("b", "c")], between=" ")
        'a &lt; b <b>c</b>'
    """
    return Markup(between.join(_safe(part) for part in parts))


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """One element of HTML or SVG.

    Args:
        tag: Its name.
        *content: What is inside; text that is no markup is escaped.
        **attributes: By name, a trailing underscore aside and hyphens as underscores. True is an attribute without a
            value; None and False are none.

    Example:
        >>> element("a", "1 < 2", class_="number", aria_label='"so"')
        '<a class="number" aria-label="&quot;so&quot;">1 &lt; 2</a>'
    """
    written = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID and not content:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(content)}</{tag}>")


def _safe(part: str) -> str:
    """A part of a page."""
    return part if isinstance(part, Markup) else html.escape(part)


def _attribute(name: str) -> str:
    """The name of an attribute, from one that Python allows."""
    return name.rstrip("_").replace("_", "-")
