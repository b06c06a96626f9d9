"""Files that the library writes: safetensors, with a JSON text under one key of the header; and each whole or not."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors

from secateur._errors import InvalidInputError

__all__ = ["headers_in", "opened", "parsed", "refuse_place", "written_file", "written_folder"]

_OURS = "secateur."
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|masks\.safetensors")


@contextmanager
def opened(path: str | PathLike[str], key: str, kind: str, *, fix: str = "") -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a file of one of the library's formats.

    Args:
        path: The file.
        key: Where its JSON text is in the header.
        kind: The format that it must have.
        fix: What to do with another file.

    Yields:
        The open safetensors file and what its JSON text holds.

    Raises:
        InvalidInputError: It is no safetensors file, or one of another format.
    """
    try:
        file = safetensors.safe_open(path, "pt")
    except safetensors.SafetensorError as error:
        raise InvalidInputError(f"{path} is not a safetensors file.", found=str(error)[:80], fix=fix) from error
    with file:
        text = (file.metadata() or {}).get(key)
        header = parsed(text)
        if header.get("format") != kind:
            raise InvalidInputError(
                f"{path} is not a file of the kind {kind}.", format=header.get("format", "none"), fix=fix
            )
        yield file, header


def parsed(text: str | None) -> dict[str, Any]:
    """The JSON text of a header; empty if it is none."""
    try:
        found = json.loads(text or "{}")
    except (json.JSONDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def headers_in(metadata: Mapping[str, str] | None) -> dict[str, dict[str, Any]]:
    """What the metadata of a file holds in formats of the library: key -> its JSON text.

    A part of a file, beside what it is mainly, has its tensors in the text itself, as ``"tensors"``.
    """
    headers = {key: parsed(text) for key, text in (metadata or {}).items()}
    return {key: header for key, header in headers.items() if str(header.get("format", "")).startswith(_OURS)}


@contextmanager
def written_file(path: str | PathLike[str], *, force: bool = True) -> Iterator[Path]:
    """Write a file beside its place and move it there when the block has ended: it is there in whole or not at all.

    It can be read by whom the umask allows, or as the one before it: safetensors writes files for their owner alone.

    Args:
        path: Where the file is to be.
        force: Whether one that is there may be replaced.

    Yields:
        The path to write to, in the same folder.

    Raises:
        InvalidInputError: The file is there and must stay, or its folder is not there.
    """
    target = Path(path)
    refuse_place(target, force=force and not target.is_dir())
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def written_folder(path: str | PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """Fill a folder beside its place and move it there when the block has ended.

    Args:
        path: Where the folder is to be.
        force: Whether it may be there already. Its files are replaced one by one then. Weights of another save, by the
            names that transformers and we give them, go, as they would be read beside the new ones; the rest stays.

    Yields:
        The folder to fill.

    Raises:
        InvalidInputError: It is there and must stay, is a file, or has no folder to be in.
    """
    target = Path(path).absolute()
    refuse_place(target, force=force and target.is_dir())
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield beside
        for file in filter(Path.is_file, beside.iterdir()):
            file.chmod(0o666 & ~_umask())
        if target.is_dir():
            names = sorted(file.name for file in beside.iterdir())
            for name in names:
                os.replace(beside / name, target / name)
            for old in target.iterdir():
                if _WEIGHTS.fullmatch(old.name) and old.name not in names:
                    old.unlink()
        else:
            beside.chmod(0o777 & ~_umask())
            os.rename(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def refuse_place(path: str | PathLike[str], *, force: bool) -> None:
    """Refuse to write where something is already, or where there is no folder to write to.

    Args:
        path: Where something is to be written.
        force: Whether what is there may be replaced.

    Raises:
        InvalidInputError: Something is there, or no folder.
    """
    target = Path(path)
    if target.exists() and not force:
        raise InvalidInputError(
            f"{target} is there already, and nothing is overwritten unasked.",
            fix="force=True (--force on the command line), or another place",
        )
    if target.exists() and not target.is_file() and not target.is_dir():
        raise InvalidInputError(f"{target} is no place for a file: it is a device, a pipe or a socket.")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise InvalidInputError(f"{target} cannot be written: there is no such folder.", fix=f"mkdir -p {folder}")


def _umask() -> int:
    """What new files of this process may not be, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
