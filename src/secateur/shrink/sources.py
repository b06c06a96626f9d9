"""What `load_` is given: a file of `save`, or the weights of a model as other programs keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import _compat
from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._files import headers_in, opened
from secateur._names import tied_names
from secateur.checkpoints import Checkpoint, Stored, open_checkpoint
from secateur.masks.commit import check_held
from secateur.masks.eligible import check_maskable, find, refuse_shared
from secateur.masks.saving import from_state
from secateur.shrink.beside import buffers_in, masks_in
from secateur.shrink.configs import is_smaller, recorded_by_config, refuse_unlike
from secateur.shrink.content import Content, content_of
from secateur.shrink.files import in_header, names_in, tensor_in
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.pretrained import CONFIG, is_of_transformers, pretrained
from secateur.surgery.refusals import refuse_call

__all__ = [
    "MASKS_FILE",
    "MODEL",
    "Source",
    "check_masks",
    "is_saved_model",
    "plan_texts",
    "refuse_other_kinds",
    "source_of",
]

MODEL = "secateur.model.1"
MASKS_FILE = "masks.safetensors"
_APPLIED = "applied plan {}"
_DAMAGES = AttributeError, KeyError, TypeError, ValueError, RuntimeError, RecursionError
"""What reading a header raises that does not fit its tensors."""
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
        masks: Masks by name, bool, True = kept.
        checkpoint: Where the values are read from, one tensor at a time; None if the content has them.
        plans: By which a model becomes as small as it, one after another; none if its shapes and numbers say how.
    """

    content: Content
    masks: dict[str, Tensor] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    plans: tuple[ShrinkPlan, ...] = ()

    def fill_(self, model: nn.Module) -> None:
        """Load the values into a model of these shapes."""
        if self.checkpoint is None:
            self.content.fill_(model)
            return
        own = model.state_dict()
        with torch.no_grad():
            for tensor in self.checkpoint:
                own[tensor.name].copy_(tensor.tensor())


def source_of(model: nn.Module, given: str | PathLike[str] | Mapping[str, Tensor], *, masks: bool = True) -> Source:
    """Read all but the values of what is to be loaded.

    Args:
        model: The model that it is for.
        given: What `secateur.load_` takes.
        masks: Whether masks that are there are wanted.

    Raises:
        SecateurError: Those of `secateur.load_` that concern the source.
    """
    if isinstance(given, Mapping):
        _refuse_unreadable(given)
        return Source(Content(_with_twins(model, dict(given))))
    checkpoint = open_checkpoint(fspath(given))
    if is_saved_model(checkpoint):
        return _saved(checkpoint.shards[0].path, masks=masks)
    refuse_other_kinds(checkpoint)
    shapes = {tensor.name: torch.empty(_readable(tensor).shape, device="meta") for tensor in checkpoint}
    content = Content(_with_twins(model, shapes))
    beside = _masks_beside(Path(given)) if masks else {}
    found = Source(content, beside, checkpoint, _plans_for(model, checkpoint, content))
    if found.plans:
        return found
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
    for name, mask in source.masks.items():
        check_maskable(model, name)
        shape = source.content.tensors[name].shape
        if mask.shape != shape:
            raise InvalidInputError(
                f"the mask of {name!r} is of another shape than what is loaded.",
                mask=tuple(mask.shape),
                loaded=tuple(shape),
            )
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    refuse_shared(model, {first[name] for name in source.masks})
    if optimizers := list(optimizers):
        check_held(model, {name: find(model, name) for name in source.masks}, optimizers)


def plan_texts(plan: ShrinkPlan, checkpoint: Checkpoint) -> dict[str, str]:
    """What the metadata of weights says after a plan has cut them, so that `load_` does the same to a model.

    Args:
        plan: The plan.
        checkpoint: The weights before; they may have been cut by other plans already.
    """
    number = 1 + len(_applied_in(checkpoint))
    return {_APPLIED.format(number): in_header(plan.to_part())}


def _applied_in(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Headers of the plans by which weights have been cut, in their order."""
    headers = headers_in(checkpoint.shards[0].metadata)
    names = (_APPLIED.format(number) for number in range(1, 1 + len(headers)))
    return [headers[name] for name in names if name in headers]


def _plans_for(model: nn.Module, checkpoint: Checkpoint, content: Content) -> tuple[ShrinkPlan, ...]:
    """The plans by which weights have been cut, for a model that is not as small as they are.

    Raises:
        ShapeError: They do not fit the model.
        InvalidInputError: The header is damaged.
    """
    if not is_smaller(model, content):
        return ()
    try:
        plans = tuple(ShrinkPlan.from_part(None, header) for header in _applied_in(checkpoint))
    except _DAMAGES as error:
        raise InvalidInputError(f"the plan in the header of {checkpoint.shards[0].path} is damaged.") from error
    state: Mapping[str, Tensor] = {n: torch.empty(t.shape, device="meta") for n, t in model.state_dict().items()}
    for plan in plans:
        state = plan.apply_to(state)
    wrong = [n for n, tensor in content.tensors.items() if plans and n in state and state[n].shape != tensor.shape]
    if wrong:
        raise ShapeError(
            f"{wrong[0]!r} is not as the plan in the header of {checkpoint.shards[0].path} leaves it.",
            planned=tuple(state[wrong[0]].shape),
            found=tuple(content.tensors[wrong[0]].shape),
        )
    return plans


def _saved(path: Path, *, masks: bool) -> Source:
    """What is in a file of `save`."""
    with opened(path, "model", MODEL) as (file, header):
        try:
            content = Content.read(header, {name: tensor_in(file, header, name) for name in names_in(file, header)})
            content.buffers.update(buffers_in(file))
            found = masks_in(file, content.tensors) if masks else {}
        except InvalidInputError:
            raise
        except _DAMAGES as error:
            raise InvalidInputError(f"{path} is damaged: its header and its tensors do not belong together.") from error
    return Source(content, found)


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
    return from_state({each.name: each.tensor() for each in open_checkpoint(path)}) if path.is_file() else {}


def _refuse_unreadable(tensors: Mapping[str, object]) -> None:
    """Refuse tensors that cannot be copied into others, before anything is changed."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and (
            tensor.layout is not torch.strided or tensor.is_quantized or _compat.is_fake(tensor)
        ):
            raise UnsupportedError(
                f"cannot load {name!r}: it has no dense values.",
                layout=tensor.layout,
                device=tensor.device,
                fix="tensor.to_dense(), tensor.dequantize(), or the tensor itself instead of a fake or meta one",
            )


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
