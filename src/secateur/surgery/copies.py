"""Copies of the model that follow by name: another module, an averaged model, a dict of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from secateur._errors import HolderError, InvalidInputError
from secateur._wrappers import refuse_model, unwrapped
from secateur.surgery.asked import Asked
from secateur.surgery.change import Change
from secateur.surgery.edits import Edit, SetItem
from secateur.surgery.holders import holder

__all__ = ["follow_mapping", "follow_module"]


@holder(nn.Module)
def follow_module(copy: nn.Module, changes: Sequence[Change]) -> list[Edit]:
    """A copy of the model, or what has one as its ``.module`` (``AveragedModel`` and the like), follows by name."""
    refuse_model(copy)
    asked = Asked(_copy_inside(copy, changes[0].name))
    for change in changes:
        for name in change.names:
            _add(asked, name, change)
    return asked.edits()


def _copy_inside(copy: nn.Module, name: str) -> nn.Module:
    """The module that has a tensor of that name: `copy` itself, or the one that it wraps."""
    inner = unwrapped(copy)
    names = {n for n, _ in (*inner.named_parameters(remove_duplicate=False), *inner.named_buffers())}
    wrapped = inner._modules.get("module")
    return _copy_inside(wrapped, name) if name not in names and wrapped is not None else inner


def _add(asked: Asked, name: str, change: Change) -> None:
    """Ask the copy for the same change."""
    try:
        place = asked.place(name)
    except InvalidInputError as error:
        raise HolderError(
            f"the copy ({type(asked.model).__name__}) has no {name!r}, so it cannot follow.",
            fix="pass the module that it is a copy of, with names relative to that",
        ) from error
    if place.tensor is change.tensor:
        raise HolderError(
            f"what was passed as `ema` is no copy: its {name!r} is the model's own.",
            fix="leave it out; a copy is made by copy.deepcopy(model) or AveragedModel(model)",
        )
    _refuse_other_shape(name, place.tensor, change)
    for selection in change.selections:
        asked.add(place, selection)


@holder(dict)
def follow_mapping(copies: dict[str, Tensor], changes: Sequence[Change]) -> Iterable[Edit]:
    """A dict of tensors by dotted name, such as a hand-made average or a state dict; other names are left out of it."""
    known = [(name, change) for change in changes for name in change.names if name in copies]
    if not known:
        raise HolderError(
            f"the dict of copies has no {changes[0].name!r}, so it cannot follow.", keys=", ".join(list(copies)[:4])
        )
    for name, change in known:
        _refuse_other_shape(name, copies[name], change)
    return [
        SetItem(copies, name, change.take_value(copies[name]))
        for name, change in known
        if copies[name] is not change.tensor  # a dict of the model's own parameters sees the change by itself
    ]


def _refuse_other_shape(name: str, twin: Tensor, change: Change) -> None:
    """Refuse a copy that does not look like the model."""
    if not isinstance(twin, Tensor) or twin.shape != change.old_shape:
        raise HolderError(
            f"the copy's {name!r} has another shape than the model's, so it cannot follow.",
            copy=tuple(twin.shape) if isinstance(twin, Tensor) else type(twin).__name__,
            model=tuple(change.old_shape),
        )
