"""Folders of transformers, read by transformers itself: it knows the names that weights had in other versions of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from secateur import _compat
from secateur._errors import ShapeError

__all__ = ["CONFIG", "is_of_transformers", "pretrained", "quiet", "who_has_sizes"]

CONFIG = "config.json"
_MOST = 8
_RECORDED = "write the smaller model with secateur.shrink.save_pretrained or secateur.save, which record its sizes"
_PRUNING = "pruning.safetensors"
_OF_A_TRAINER = (
    "the file pruning.safetensors has the sizes: trainer = Trainer(model, TrainingArguments(…, "
    "resume_from_checkpoint={folder!r}), callbacks=[Pruning(…)]) makes the model as small, and "
    "secateur.load_(trainer.model, {folder!r}) reads the weights"
)


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model's class can be read from folders, as those of transformers can."""
    return hasattr(type(model), "from_pretrained") and hasattr(getattr(model, "config", None), "save_pretrained")


def pretrained(kind: Any, folder: Path) -> nn.Module:
    """The model of a folder with its weights, which must be all there.

    Args:
        kind: Its class.
        folder: A folder with a config and safetensors. Nothing is fetched or unpickled.

    Raises:
        ShapeError: The weights do not fit the config.
    """
    try:
        with quiet():
            model, found = kind.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except RuntimeError as error:  # how transformers tells of shapes that do not fit
        told = " ".join(str(error).split())
        raise ShapeError(
            f"the weights in {folder} do not fit its config: {told[:200]}", fix=who_has_sizes(folder)
        ) from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise ShapeError(
            f"the weights in {folder} do not fit its config.",
            missing=", ".join(missing[:_MOST]),
            unknown=", ".join(sorted(found["unexpected_keys"])[:_MOST]) or "none",
            fix=who_has_sizes(folder),
        )
    made: nn.Module = model
    return made


def who_has_sizes(folder: Path) -> str:
    """How to get at a smaller model whose weights are in a folder with the config of before."""
    return _OF_A_TRAINER.format(folder=str(folder)) if (folder / _PRUNING).is_file() else _RECORDED


@contextmanager
def quiet() -> Iterator[None]:
    """Have transformers show no bars of its own."""
    library: Any = _compat.optional("transformers")
    was = library is not None and library.utils.logging.is_progress_bar_enabled()
    if was:
        library.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            library.utils.logging.enable_progress_bar()
