"""A smaller model in one file, and back into a fresh instance of its class, with its masks and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from torch import Tensor, nn

from secateur._errors import InvalidInputError
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks
from secateur.shrink.content import Content, content_of
from secateur.shrink.files import Part, write_file
from secateur.shrink.grow_plan import GrowPlan
from secateur.shrink.plan import ShrinkPlan
from secateur.shrink.resizing import refuse_other, resize_
from secateur.shrink.sources import MASKS, MODEL, check_masks, source_of
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
        path: Where to. The file holds plain tensors, and integers as JSON in its header; nothing is pickled. It is
            there in whole or not at all.
        masks: Whether the masks that the model has are written too, one bit a weight; they may be given themselves.
            What they mask is zero in the file in any case.
        plan: A plan to be kept in the same file, such as the one by which the model was shrunk; ``ShrinkPlan.load``
            reads it from there.

    Raises:
        InvalidInputError: It is no module, or has no values (a fake or meta device); the masks are another model's; or
            there is no folder to write to.
        UnsupportedError: The model's state holds something else than tensors, or tensors that are lazy; or the model is
            inside a wrapper that keeps parameters in forms of its own.
    """
    refuse_model(model)
    model = unwrapped(model)
    if isinstance(masks, Masks) and masks.model is not model:
        raise InvalidInputError(
            f"the masks are those of another {type(masks.model).__name__}.", fix="secateur.save(model, path)"
        )
    content, held = content_of(model), Masks(model)
    for name, mask in held.items():
        content.tensors[name].masked_fill_(~mask, 0)  # also what was written to since the last step
    parts = {} if plan is None else {"plan": plan.to_part()}
    if held and masks is not False:
        parts["masks"] = Part({"format": MASKS}, held.state_dict())
    write_file(path, "model", {"format": MODEL, **content.header()}, content.written(), parts)


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
        source: A file that `save` wrote; or any state_dict whose tensors are as large as the model's or smaller, itself
            or in a file of safetensors, several with their index, or a folder such as those of transformers. A
            state_dict has shapes only: sizes that torch.nn modules record follow from them, others do not unless the
            folder's ``config.json`` has them, and buffers that are in no state_dict stay as they are. Groups (of a
            convolution, a GroupNorm) stay as many as the model has where that number divides the channels. Of tied
            tensors one name is enough.
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
    found = source_of(inner, source)
    optimizers = optimizers_among(optimizer)
    refuse_other(inner, found.content.tensors)
    if masks and found.masks:
        check_masks(inner, found, optimizers)
    resize_(inner, found.content, optimizer=optimizer, ema=ema)
    found.fill_(inner)
    if masks and found.masks:
        held = Masks(inner)
        held.load_state_dict(found.masks)
        if optimizers:
            held.attach(optimizers)
    return model


def fit_(model: nn.Module, content: Content, *, optimizer: Holders = None, ema: Holders = None) -> None:
    """Do what `load_` does, with the content of a file."""
    resize_(model, content, optimizer=optimizer, ema=ema)
    content.fill_(model)
