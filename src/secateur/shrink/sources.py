"""What `load_` is given: a file of `save`, or the weights of a model as other programs keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._files import headers_in, opened
from secateur._names import tied_names
from secateur.checkpoints import Checkpoint, Stored, open_checkpoint
from secateur.masks.commit import check_held
from secateur.masks.eligible import check_maskable, find, refuse_shared
from secateur.masks.saving import from_state
from secateur.shrink.configs import is_smaller, recorded_by_config, refuse_unlike
from secateur.shrink.content import Content, content_of
from secateur.shrink.files import names_in, tensor_in
from secateur.shrink.pretrained import CONFIG, is_of_transformers, pretrained
from secateur.surgery.refusals import refuse_call

__all__ = ["MASKS", "MASKS_FILE", "MODEL", "Source", "check_masks", "is_saved_model", "refuse_other_kinds", "source_of"]

MODEL, MASKS = "secateur.model.1", "secateur.masks.1"
MASKS_FILE = "masks.safetensors"
_OTHERS = {
    "compressed": ("a compressed model", "secateur.load_compressed(path, model)"),
    "plan": ("a plan", "secateur.shrink.ShrinkPlan.load(path).apply_(model)"),
    "ticket": ("a ticket", "secateur.tickets.Ticket.load(path).apply_(model)"),
    "snapshot": ("a snapshot", "secateur.tickets.rewind_(model, secateur.tickets.Snapshot.load(path))"),
}


@dataclass(frozen=True, eq=False)
class Source:
    """Something to load.

    Args:
        content: What it holds; of a checkpoint, shapes only.
        masks: Masks in the form of ``Masks.state_dict``.
        checkpoint: Where the values are read from, one tensor at a time; None if the content has them.
    """

    content: Content
    masks: dict[str, Tensor] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None

    def fill_(self, model: nn.Module) -> None:
        """Load the values into a model of these shapes."""
        if self.checkpoint is None:
            self.content.fill_(model)
            return
        own = model.state_dict()
        with torch.no_grad():
            for tensor in self.checkpoint:
                own[tensor.name].copy_(tensor.tensor())


def source_of(model: nn.Module, given: str | PathLike[str] | Mapping[str, Tensor]) -> Source:
    """Read all but the values of what is to be loaded.

    Args:
        model: The model that it is for.
        given: What `secateur.load_` takes.

    Raises:
        SecateurError: Those of `secateur.load_` that concern the source.
    """
    if isinstance(given, Mapping):
        return Source(Content(_with_twins(model, dict(given))))
    checkpoint = open_checkpoint(fspath(given))
    if is_saved_model(checkpoint):
        return _saved(checkpoint.shards[0].path)
    refuse_other_kinds(checkpoint)
    shapes = {tensor.name: torch.empty(_readable(tensor).shape, device="meta") for tensor in checkpoint}
    found = Source(Content(_with_twins(model, shapes)), _masks_beside(Path(given)), checkpoint)
    folder = checkpoint.shards[0].path.parent
    if is_of_transformers(model) and (folder / CONFIG).is_file():
        return _with_config(model, found, folder)
    return found


def is_saved_model(checkpoint: Checkpoint) -> bool:
    """Whether `secateur.save` has written a checkpoint."""
    return "model" in headers_in(checkpoint.shards[0].metadata)


def refuse_other_kinds(checkpoint: Checkpoint) -> None:
    """Refuse the library's files of other kinds: plans, tickets, compressed models.

    Raises:
        InvalidInputError: It is one.
    """
    headers = headers_in(checkpoint.shards[0].metadata)
    for key, (what, reader) in _OTHERS.items():
        if key in headers and not is_saved_model(checkpoint):
            raise InvalidInputError(
                f"{checkpoint.shards[0].path} holds {what}, and no weights to load into a model.",
                format=headers[key]["format"],
                fix=reader,
            )


def check_masks(model: nn.Module, source: Source, optimizers: Iterable[Optimizer]) -> None:
    """Refuse masks that could not be put on the model once it is as small as the source.

    Raises:
        InvalidInputError: They belong to other tensors than those of the source.
        UnsupportedError: A parameter cannot be masked.
        HolderError: Optimizers are given, none of which holds a parameter that is trained.
    """
    refuse_call()
    masks = from_state(source.masks)
    for name, mask in masks.items():
        check_maskable(model, name)
        shape = source.content.tensors[name].shape
        if mask.shape != shape:
            raise InvalidInputError(
                f"the mask of {name!r} is of another shape than what is loaded.",
                mask=tuple(mask.shape),
                loaded=tuple(shape),
            )
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    refuse_shared(model, {first[name] for name in masks})
    if optimizers := list(optimizers):
        check_held(model, {name: find(model, name) for name in masks}, optimizers)


def _saved(path: Path) -> Source:
    """What is in a file of `save`."""
    with opened(path, "model", MODEL) as (file, header):
        try:
            content = Content.read(header, {name: tensor_in(file, header, name) for name in names_in(file, header)})
            there = headers_in(file.metadata()).get("masks")
            masks = {} if there is None else {name: tensor_in(file, there, name) for name in names_in(file, there)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{path} is damaged: its header and its tensors do not belong together.") from error
    return Source(content, masks)


def _with_config(model: nn.Module, found: Source, folder: Path) -> Source:
    """Weights with the numbers that the config beside them says; names of other versions are left to transformers."""
    content = found.content
    if content.tensors.keys() == model.state_dict().keys():
        content.numbers = recorded_by_config(model, content, folder)
        return found
    made = pretrained(type(model), folder)
    content = content_of(made)
    if is_smaller(model, content):
        refuse_unlike(model, made, folder)
    else:
        content = Content(content.tensors)
    return Source(content, found.masks)


def _masks_beside(given: Path) -> dict[str, Tensor]:
    """Masks in a folder of weights, in a file of their own."""
    path = given / MASKS_FILE
    return {tensor.name: tensor.tensor() for tensor in open_checkpoint(path)} if path.is_file() else {}


def _readable(tensor: Stored) -> Stored:
    """A tensor, which must be of a dtype of torch."""
    if not tensor.has_entries:
        raise UnsupportedError(f"cannot load {tensor.name!r}: torch has no such dtype.", dtype=tensor.dtype)
    return tensor


def _with_twins(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which tied ones may be there under one of their names, under each of them."""
    for names in tied_names(model).values():
        there = next((name for name in names if name in tensors), None)
        if there is not None:
            tensors.update({name: tensors[there] for name in names if name not in tensors})
    return tensors
