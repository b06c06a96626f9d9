"""Smaller models of transformers in folders of their layout: ``config.json`` and safetensors."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch

from secateur._files import written_folder
from secateur._passes import Inputs
from secateur._wrappers import refuse_model, unwrapped
from secateur.graph.trace import refuse_strange
from secateur.masks import Masks
from secateur.shrink.configs import config_before, config_of, describes
from secateur.shrink.pretrained import quiet
from secateur.shrink.saving import save
from secateur.shrink.sources import MASKS_FILE

__all__ = ["save_pretrained", "write_folder"]

_WEIGHTS = "model.safetensors"


def save_pretrained(
    model: Any, folder: str | PathLike[str], example_inputs: Inputs, *, config: Any = None, force: bool = False
) -> bool:
    """Write a model of transformers that has become smaller to a folder, for ``from_pretrained`` if that can load it.

    A config has one number for all layers. If every layer has lost the same, some config may describe the smaller
    model: it does if a new model of it has the same shapes and computes the same bits on the example inputs. Then the
    folder is like any other of transformers, with masks in a file of their own beside the weights. Otherwise it has the
    config of before and a file of `save`, and ``from_pretrained`` refuses it because of its shapes.
    ``secateur.load_(Model(config), folder)`` loads both, for either config.

    Args:
        model: The model.
        folder: Where to. It is there in whole or not at all.
        example_inputs: Inputs in any form that `plan_shrink` takes.
        config: The config as it was before units were removed. It need not be given unless the model's code computes
            with numbers of its config, which then follow a cut.
        force: Whether the folder may be there already; files of the same names are replaced.

    Returns:
        Whether ``from_pretrained`` loads it.

    Raises:
        InvalidInputError: It is no model of transformers, or the config is not the one of before; or the folder is
            there and must stay, or has no folder to be in.
        UnsupportedError: That of `save`.
    """
    refuse_model(model)
    refuse_strange(example_inputs)
    model = unwrapped(model)
    before = config_before(model, config)
    found = config_of(model, before, example_inputs)
    with written_folder(folder, force=force) as beside:
        _write(model, before, found, beside)
    return found is not None


def write_folder(model: Any, folder: Path) -> bool:
    """Write a model of transformers whose sizes are those of its config to a folder that is there.

    One that has become smaller before, and that was read from a folder which says so, is written like that again.

    Args:
        model: The model.
        folder: The folder.

    Returns:
        Whether ``from_pretrained`` loads it.

    Raises:
        InvalidInputError, UnsupportedError: Those of `save_pretrained`.
    """
    before = config_before(model, None)
    found = before if describes(before, model) else None
    _write(model, before, found, folder)
    return found is not None


def _write(model: Any, before: Any, found: Any, folder: Path) -> None:
    """Write a model with the config that describes it; if there is none, with that of before and its sizes."""
    if found is None:
        before.architectures = [type(model).__name__]
        before.save_pretrained(folder)
        save(model, folder / _WEIGHTS)
    else:
        _write_with(model, found, folder)


def _write_with(model: Any, config: Any, folder: Path) -> None:
    """Write a model with a config as transformers does, and its masks."""
    masks = Masks(model)
    if masks:
        masks.apply_()  # to what was written to since the last step
        safetensors.torch.save_file(masks.state_dict(), folder / MASKS_FILE)
    own, model.config = model.config, config
    try:
        with quiet():
            model.save_pretrained(folder)
    finally:
        model.config = own
