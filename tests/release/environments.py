"""Virtual environments that hold some of the distributions that are here, made without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def requirements(lines: Iterable[str]) -> set[str]:
    """The distributions that requirements name, and all that those need here.

    Example:
        >>> sorted(requirements(["build>=1.2"]))
        ['build', 'packaging', 'pyproject-hooks']
    """
    found, left = set[tuple[str, str]](), [Requirement(line) for line in lines]
    while left:
        one = left.pop()
        for extra in {(canonicalize_name(one.name), extra) for extra in ("", *one.extras)} - found:
            found.add(extra)
            needed = map(Requirement, distribution(one.name).requires or [])
            left += [other for other in needed if not other.marker or other.marker.evaluate({"extra": extra[1]})]
    return {name for name, _ in found}


def places(name: str) -> Iterator[Path]:
    """Files and folders, right below ``site-packages``, that belong to a distribution."""
    one = distribution(name)
    tops = {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}
    return (Path(str(one.locate_file(top))) for top in sorted(tops))


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Args:
        folder: Where it is.
        variables: Variables of the environment that its programs see beside those of this process.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def make(self, names: set[str]) -> None:
        """Make it, and link distributions into it."""
        self.run(sys.executable, "-m", "venv", "--without-pip", str(self.folder))
        for name in names:
            for place in places(name):
                link = self.site / place.name
                if not link.exists():  # several may share a folder
                    link.symlink_to(place)

    def install(self, file: Path) -> str:
        """Install one file, with what is here alone; what pip says."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python")]
        options = ["--isolated", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        return self.run(*pip, "install", *options, str(file))

    def program(self, name: str, *words: str) -> str:
        """What one of its programs prints."""
        return self.run(str(self.folder / "bin" / name), *words)

    def run(self, *words: str) -> str:
        """What a command prints, run in the environment's own folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SECATEUR"))}
        self.folder.mkdir(exist_ok=True)
        done = subprocess.run(
            words, cwd=self.folder, env=kept | self.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}\nends with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout
