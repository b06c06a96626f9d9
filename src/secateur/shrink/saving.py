"""A smaller model in one file, and back into a fresh instance of its class, with its masks and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks, slots
from secateur.masks.commit import put_
from secateur.shrink.beside import buffers_part, masks_part, zero_
from secateur.shrink.content import Content, content_of
from secateur.shrink.files import write_file
from secateur.shrink.grow_plan import GrowPlan
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.resizing import refuse_other, resize_
from secateur.shrink.sources import MODEL, check_masks, source_of
from secateur.shrink.stale import watched
from secateur.shrink.values import refuse_overlapping
from secateur.surgery.admission import optimizers_among
from secateur.surgery.transaction import Holders

__all__ = ["Content", "content_of", "fit_", "load_", "save"]


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    masks: bool | Masks = True,
    plan: ShrinkPlan | GrowPlan | None = None,
) -> None:
    """Write a model to one safetensors file, from which `load_` brings it back whatever has been removed from it.

    Args:
        model: Any model; usually one that `shrink_` has made smaller, or that has masks.
        path: Where to. The file's tensors are those of ``model.state_dict()``, under its names (tied ones once), so
            other programs load them; what is beside them is JSON in its header. Nothing is pickled. The file is there
            in whole or not at all.
        masks: Whether the masks that the model has are written too; they may be given themselves. What they mask is
            zero in the file in any case, so the header has only which of the zeros are not masked.
        plan: A plan to be kept in the same header, such as the one by which the model was shrunk; ``ShrinkPlan.load``
            reads it from there.

    Raises:
        InvalidInputError: It is no module, or has no values (a fake or meta device); the masks are another model's; or
            there is no folder to write to.
        UnsupportedError: The model's state holds something else than tensors, or tensors that are lazy; the model is
            inside a wrapper that keeps parameters in forms of its own; or kept zeros that lie at random, or a plan, are
            more than a header holds (100 MB).
    """
    if plan is not None and not isinstance(plan, ShrinkPlan | GrowPlan):
        raise InvalidInputError("a plan is needed.", plan=type(plan).__name__, fix="secateur.plan_shrink(…)")
    refuse_model(model)
    model = unwrapped(model)
    if isinstance(masks, Masks) and masks.model is not model:
        raise InvalidInputError(
            f"the masks are those of another {type(masks.model).__name__}.", fix="secateur.save(model, path)"
        )
    content, held = content_of(model), Masks(model)
    for name, mask in held.items():
        zero_(content.tensors[name], ~mask)  # also what was written to since the last step
    parts = {} if plan is None else {"plan": plan.to_part()}
    if held and masks is not False:
        parts["masks"] = masks_part(held, content.tensors)
    if content.buffers and not content.has_large_buffers:
        parts["buffers"] = buffers_part(content.buffers)
    tensors = content.written() if content.has_large_buffers else content.own()
    write_file(path, "model", {"format": MODEL, **content.header()}, tensors, parts)


def load_(
    model: nn.Module,
    source: str | PathLike[str] | Mapping[str, Tensor],
    *,
    optimizer: Holders = None,
    ema: Holders = None,
    masks: bool = True,
) -> nn.Module:
    """Make a fresh model as small as a saved one, load its values, and put its masks in force.

    Args:
        model: An instance of the class that was saved, as large as it was before units were removed.
        source: A file that `save` wrote, or ``secateur apply``; or any state_dict whose tensors are as large as the
            model's or smaller, itself or in a file of safetensors, several with their index, or a folder such as those
            of transformers. A state_dict has shapes only: sizes that torch.nn modules record follow from them; numbers
            that other code keeps (heads, their width) do not unless the folder's ``config.json`` has them, of which
            there is a warning; buffers that are in no state_dict stay as they are. Groups (of a convolution, a
            GroupNorm) stay as many as the model has where that number divides the channels. Of tied tensors one name
            is enough.
        optimizer: An optimizer that holds the model's parameters already, or several; best made afterwards.
        ema: What else follows by name: shapes and recorded sizes; its values are its own to load.
        masks: Whether masks that are there are put on the model, see `Masks`; otherwise only zeros come back.

    Returns:
        The model.

    Changes:
        Shapes and values of parameters and buffers, recorded sizes, masks if there are any in the file.

    Keeps:
        Identity, names and flags of parameters, the model's class and code.

    Raises:
        ShapeError: The model has other tensors, or smaller ones: another architecture. Nothing has been changed.
        InvalidInputError: It is no module; or the file is none of these, is truncated or damaged, holds pickles, or
            lacks some of its parts. Nothing has been changed.
        UnsupportedError: A state_dict whose shapes do not say how many heads or groups there are, or a folder whose
            config differs from the model's in more than sizes. Nothing has been changed.
    """
    refuse_model(model)
    inner = model if isinstance(source, Mapping) else unwrapped(model)
    found = source_of(inner, source, masks=masks)
    optimizers = optimizers_among(optimizer)
    refuse_other(inner, found.content.tensors)
    refuse_overlapping(inner.state_dict())
    if found.masks:
        check_masks(inner, found, optimizers)
    for plan in found.plans:
        plan.apply_(inner, optimizer=optimizer, ema=ema)
    if not found.plans:
        with watched(inner, found.content):
            resize_(inner, found.content, optimizer=optimizer, ema=ema)
    found.fill_(inner)
    if found.masks:
        put_(inner, found.masks, restoring=True)
        slots.empty(inner, keep=found.masks)
        if optimizers:
            Masks(inner).attach(optimizers)
    return model


def fit_(model: nn.Module, content: Content, *, optimizer: Holders = None, ema: Holders = None) -> None:
    """Do what `load_` does, with the content of a file."""
    resize_(model, content, optimizer=optimizer, ema=ema)
    content.fill_(model)
