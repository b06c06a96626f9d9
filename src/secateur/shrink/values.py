"""Models that have shapes and no values: they can be analysed and planned for, and not be compared or scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError

__all__ = ["numbers_in", "refuse_fake", "refuse_overlapping", "refuse_valueless"]


def refuse_valueless(tensors: Iterable[Tensor], what: str, *, fix: str = "the model itself, on a device") -> None:
    """Refuse fake tensors, and those on the meta device.

    Args:
        tensors: A model's tensors.
        what: What needs their values.
        fix: What to do instead.

    Raises:
        InvalidInputError: There is one.
    """
    if any(_compat.is_fake(tensor) for tensor in tensors):
        raise InvalidInputError(
            f"{what} needs values, and the model has none: it is fake, or on the meta device.", fix=fix
        )


def refuse_fake(tensors: Iterable[Tensor]) -> None:
    """Refuse to change fake tensors, which can be planned for; those on the meta device change like any others.

    Raises:
        UnsupportedError: There is one.
    """
    if any(_compat.is_fake(tensor) and not tensor.is_meta for tensor in tensors):
        raise UnsupportedError(
            "fake tensors cannot be changed.", fix='the model itself; or torch.device("meta") for one without values'
        )


def numbers_in(tensor: Tensor) -> npt.NDArray[np.float64]:
    """The entries of a tensor, in double precision, of its shape.

    Raises:
        InvalidInputError: It has none.
    """
    refuse_valueless([tensor], "this score", fix="score=secateur.shrink.random, or a function that needs none")
    numbers: npt.NDArray[np.float64] = tensor.double().cpu().numpy()
    return numbers


def refuse_overlapping(tensors: Mapping[str, Tensor]) -> None:
    """Refuse to write into tensors whose entries share memory.

    Raises:
        UnsupportedError: There is one.
    """
    for name, tensor in tensors.items():
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise UnsupportedError(
                f"cannot load into {name!r}: its entries share memory, as after expand().",
                fix="give the model a clone() of it",
            )
