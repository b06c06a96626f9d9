"""A report: a value that is written as one HTML file or read as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from secateur._errors import InvalidInputError
from secateur._files import written_file
from secateur._progress import task
from secateur.report.figures import Section
from secateur.report.page import page

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What there is to say of a plan, a training or a comparison; made by `gather`.

    Args:
        title: The heading of the page.
        sections: Its parts in order.
    """

    title: str
    sections: tuple[Section, ...]

    def to_dict(self) -> dict[str, Any]:
        """All that the page shows as plain numbers, strings, lists and dicts, which JSON can hold.

        Drawings are not in it; numbers that are not finite are None.
        """
        return {"title": self.title, "sections": [section.to_dict() for section in self.sections]}

    def to_html(self) -> str:
        """The text of the page, the same for the same report."""
        return page(self)

    @task("drawing figures")
    def write_html(self, path: str | PathLike[str]) -> Path:
        """Write the page to one file that needs no other and no network.

        Args:
            path: Where to. What is there is replaced, by the whole page or not at all.

        Returns:
            The path.

        Raises:
            InvalidInputError: The folder does not exist, or the path is a folder. Nothing is written then.
        """
        target = Path(path)
        if target.is_dir():
            raise InvalidInputError(
                f"{target} is a folder, and a report is one file.", fix=f"{(target / 'report.html').as_posix()!r}"
            )
        text = self.to_html()
        with written_file(target) as beside:
            beside.write_text(text, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        """The title, and the titles of the parts."""
        return f"Report({self.title!r}: {', '.join(section.title for section in self.sections)})"
