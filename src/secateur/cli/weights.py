"""``--checkpoint``: weights for a model, compared with it before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import nn

from secateur import load_
from secateur._errors import InvalidInputError, ShapeError
from secateur._files import parsed
from secateur._names import tied_names
from secateur.checkpoints import Checkpoint, Stored, open_checkpoint

__all__ = ["is_saved_model", "load_weights", "refuse_compressed"]

_MOST = 8


def load_weights(model: nn.Module, path: str) -> None:
    """Load a checkpoint.

    Args:
        model: The model.
        path: A safetensors file with a state dict, an index or a folder of several, or a file of `secateur.save`, whose
            tensors may be smaller than the model's.

    Raises:
        InvalidInputError: It is none of these.
        ShapeError: Names or shapes differ; nothing has been loaded then.
    """
    checkpoint = open_checkpoint(path)
    if is_saved_model(checkpoint):
        load_(model, checkpoint.shards[0].path)
        return
    refuse_compressed(checkpoint)
    stored = {tensor.name: tensor for tensor in checkpoint}
    _refuse_other(model, stored, path)
    own = model.state_dict()
    for name, tensor in stored.items():
        own[name].copy_(tensor.tensor())


def is_saved_model(checkpoint: Checkpoint) -> bool:
    """Whether `secateur.save` has written it."""
    return _kind(checkpoint, "model").startswith("secateur.model.")


def refuse_compressed(checkpoint: Checkpoint) -> None:
    """Refuse a file of `compress`, whose tensors are packed.

    Raises:
        InvalidInputError: It is one.
    """
    if _kind(checkpoint, "compressed"):
        raise InvalidInputError(
            f"{checkpoint.shards[0].path} is a compressed model, which has no plain weights.",
            fix="secateur.load_compressed(path, model)",
        )


def _kind(checkpoint: Checkpoint, key: str) -> str:
    """The format of a file of the library's own."""
    return str(parsed(checkpoint.shards[0].metadata.get(key)).get("format", ""))


def _refuse_other(model: nn.Module, stored: Mapping[str, Stored], path: str) -> None:
    """Refuse names and shapes of another model, and list them."""
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    twins = {name: names for names in tied_names(model).values() for name in names}
    missing = [name for name in own if not any(twin in stored for twin in twins.get(name, (name,)))]
    unknown = [name for name in stored if name not in own]
    other = [name for name, tensor in stored.items() if own.get(name, tensor.shape) != tensor.shape]
    facts = {
        "missing": _listed(missing, lambda name: f"{name} {own[name]}"),
        "unknown": _listed(unknown, lambda name: f"{name} {stored[name].shape}"),
        "other_shapes": _listed(other, lambda name: f"{name} {stored[name].shape} for {own[name]}"),
    }
    if missing or unknown or other:
        raise ShapeError(
            f"{path} does not fit {type(model).__name__}.",
            **{fact: text for fact, text in facts.items() if text},
            fix="the model as it was when the file was written; --arg NAME=VALUE passes arguments to its factory",
        )


def _listed(names: Iterable[str], shown: Callable[[str], str]) -> str:
    """Some names with what is to be said of each."""
    several = [shown(name) for name in names]
    return ", ".join(several[:_MOST]) + (f" and {len(several) - _MOST} more" if len(several) > _MOST else "")
