"""``hf:FOLDER``: a local folder of transformers, with ``config.json`` and safetensors; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from secateur import _compat, load_
from secateur._errors import InvalidInputError, ShapeError
from secateur.checkpoints import open_checkpoint
from secateur.cli.screen import told
from secateur.cli.weights import is_saved_model, refuse_compressed

__all__ = ["load_folder", "quiet", "transformers", "without_cache"]

_CONVERT = (
    "convert it once, with weights that you trust: "
    'python -c "from transformers import AutoModel; import sys; '
    'AutoModel.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])" FOLDER NEW_FOLDER'
)


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
    if not (path / "config.json").is_file():
        raise InvalidInputError(
            f"{path} is no folder of a transformers model: it has no config.json.", is_folder=path.is_dir()
        )
    _refuse_pickles(path)
    checkpoint = open_checkpoint(path)
    refuse_compressed(checkpoint)
    with quiet(library):
        config, kind = _kind(library, path)
        if is_saved_model(checkpoint):
            made: nn.Module = kind(config)
            return load_(made, checkpoint.shards[0].path)
        return _pretrained(kind, path)


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
def quiet(library: Any) -> Iterator[None]:
    """Have transformers show no bars of its own."""
    logging = library.utils.logging
    was = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            logging.enable_progress_bar()


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


def _refuse_pickles(path: Path) -> None:
    """Refuse a folder without safetensors."""
    if any(path.glob("*.safetensors")):
        return
    pickled = sorted(file.name for suffix in ("bin", "pt", "pth", "ckpt") for file in path.glob(f"*.{suffix}"))
    if pickled:
        raise InvalidInputError(
            f"{path} has its weights in pickles only, which can run code as they are read, so they are not.",
            found=", ".join(pickled[:4]),
            fix=_CONVERT,
        )
    raise InvalidInputError(f"{path} has no weights.", wanted="model.safetensors, or its shards and their index")


def _kind(library: Any, path: Path) -> tuple[Any, Any]:
    """The config, and the class of the model."""
    written = json.loads((path / "config.json").read_text(encoding="utf-8"))
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


def _pretrained(kind: Any, path: Path) -> nn.Module:
    """The model with its weights, which must be all there."""
    try:
        model, found = kind.from_pretrained(path, local_files_only=True, use_safetensors=True, output_loading_info=True)
    except RuntimeError as error:  # how transformers tells of shapes that do not fit
        raise ShapeError(f"the weights in {path} do not fit its config: {told(error)}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise ShapeError(
            f"the weights in {path} do not fit its config.",
            missing=", ".join(missing[:8]),
            unknown=", ".join(sorted(found["unexpected_keys"])[:8]) or "none",
        )
    made: nn.Module = model
    return made
