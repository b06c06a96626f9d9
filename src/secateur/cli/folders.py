"""``hf:FOLDER``: a local folder of transformers, with ``config.json`` and safetensors; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from secateur import _compat, load_
from secateur._errors import InvalidInputError
from secateur.checkpoints import open_checkpoint
from secateur.checkpoints.headers import DTYPES
from secateur.shrink.pretrained import CONFIG, pretrained
from secateur.shrink.sources import is_saved_model, refuse_other_kinds

__all__ = ["load_folder", "transformers", "without_cache"]

_MOST = 4
"""Files of a folder that are named in an error."""


def load_folder(folder: str) -> nn.Module:
    """Make the model of a folder.

    Args:
        folder: What ``save_pretrained`` has written, or ``secateur shrink hf:… --out``.

    Raises:
        InvalidInputError: transformers is not installed; the folder has no config or no safetensors; or its class is
            none of transformers.
        ShapeError: The weights do not fit the config.
    """
    library = transformers()
    path = Path(folder)
    if not path.is_dir():
        raise InvalidInputError(f"there is no folder {path}.", fix="hf:FOLDER is what save_pretrained has written")
    if not (path / CONFIG).is_file():
        there = ", ".join(sorted(file.name for file in path.iterdir())[:_MOST]) or "nothing"
        raise InvalidInputError(f"{path} is no folder of a transformers model: it has no config.json.", there=there)
    checkpoint = open_checkpoint(path)
    config, kind = _kind(library, path)
    if not is_saved_model(checkpoint):
        refuse_other_kinds(checkpoint)
        return pretrained(kind, path)
    made: nn.Module = kind(config)
    dtypes = {tensor.name: DTYPES[tensor.dtype] for tensor in checkpoint}
    for name, parameter in made.named_parameters():
        parameter.data = parameter.data.to(dtypes.get(name, parameter.dtype))
    return load_(made, path)


def transformers() -> Any:
    """The library.

    Raises:
        InvalidInputError: It is not installed.
    """
    library = _compat.optional("transformers")
    if library is None:
        raise InvalidInputError("hf:FOLDER needs transformers.", fix="pip install 'secateur[transformers]'")
    return library


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Have a model of transformers return no keys and values: they are outputs, whose sizes an analysis must keep."""
    config: Any = getattr(model, "config", None)
    if not getattr(config, "use_cache", False):
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = True


def _kind(library: Any, path: Path) -> tuple[Any, Any]:
    """The config, and the class of the model."""
    written = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    if "auto_map" in written:
        raise InvalidInputError(
            f"the model in {path} comes with code of its own, which is not run.",
            fix="install it as a package, and write package.module:factory with --checkpoint",
        )
    name = next(iter(written.get("architectures") or []), None)
    kind = getattr(library, str(name), None)
    if kind is None:
        raise InvalidInputError(f"config.json in {path} names no class of transformers.", architectures=name)
    return kind.config_class.from_pretrained(path), kind
