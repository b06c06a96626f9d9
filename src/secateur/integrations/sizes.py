"""The sizes of a model in a checkpoint, and another instance of its class cut to them before weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from operator import le
from typing import Any

from torch import Tensor, nn

from secateur._errors import ShapeError
from secateur.graph.heads import FreeHeadsAttention
from secateur.graph.provenance import old_size, stored_sizes
from secateur.shrink.saving import Content, fit_
from secateur.surgery.transaction import Holders

__all__ = ["check_sizes", "resize_to_", "sizes_of"]


def sizes_of(model: nn.Module) -> dict[str, Any]:
    """The shapes and recorded numbers of a model, and its buffers that no state dict holds.

    Args:
        model: The model.

    Returns:
        Plain data, and the buffers, with memory of their own.
    """
    state = _tensors_of(model)
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in state.items()},
        "numbers": [[a.label, a.name, a.index, int(value), int(old_size(value))] for a, value in stored_sizes(model)],
        "scales": {name: m.scale for name, m in model.named_modules() if isinstance(m, FreeHeadsAttention)},
        "buffers": {name: b.detach().clone() for name, b in model.named_buffers() if name not in state},
    }


def check_sizes(model: nn.Module, sizes: Mapping[str, Any]) -> None:
    """Refuse sizes that the model cannot be cut to.

    Args:
        model: The model.
        sizes: What `sizes_of` returned for another one.

    Raises:
        ShapeError: It has other tensors, or smaller ones.
    """
    own = {name: tuple(tensor.shape) for name, tensor in _tensors_of(model).items()}
    saved = _shapes_in(sizes)
    for name in {**own, **saved}:
        mine, its = own.get(name), saved.get(name)
        if mine is None or its is None or len(mine) != len(its) or not all(map(le, its, mine)):
            raise ShapeError(
                f"the checkpoint is of another model, or of a larger one: {name!r} does not fit.",
                model=mine or "no such tensor",
                checkpoint=its or "no such tensor",
                fix="build the model as it was before units were removed; nothing grows back by loading",
            )


def resize_to_(model: nn.Module, sizes: Mapping[str, Any], *, optimizer: Holders = None, ema: Holders = None) -> None:
    """Make a model as small as a checkpoint's; which positions stay does not matter, as values are loaded afterwards.

    Args:
        model: The model.
        sizes: What `sizes_of` returned, checked by `check_sizes`.
        optimizer: What trains the model already: one, several or none.
        ema: What follows by name.

    Changes:
        Shapes, recorded numbers, buffers that no state dict holds. Nothing if the model has these shapes.

    Raises:
        SecateurError: Those of `secateur.load_`.
    """
    own, saved = _tensors_of(model), _shapes_in(sizes)
    if {name: tuple(tensor.shape) for name, tensor in own.items()} == saved:
        return
    corners = {name: tensor[tuple(map(slice, saved[name]))] for name, tensor in own.items()}
    numbers = [tuple(number) for number in sizes["numbers"]]
    fit_(model, Content(corners, dict(sizes["buffers"]), numbers, dict(sizes["scales"])), optimizer=optimizer, ema=ema)


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """What the model's state dict holds, tied tensors under each of their names."""
    return {name: value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _shapes_in(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes by name."""
    return {name: tuple(shape) for name, shape in sizes["shapes"].items()}
