"""Arguments of the public functions that several of them have, and the errors that name what was being done."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsIndex

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, SecateurError, ShapeError

__all__ = ["dim_of", "in_context", "whole_number"]


def whole_number(value: SupportsIndex, name: str) -> int:
    """A whole number, of Python or NumPy; a bool is none.

    Args:
        value: What was given.
        name: The argument it was given for.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise InvalidInputError(f"`{name}` must be a whole number.", **{name: repr(value)[:80]})


def dim_of(name: str, tensor: Tensor, dim: SupportsIndex) -> int:
    """A dim of a tensor, counted from the front.

    Args:
        name: The tensor's name, for the error.
        tensor: The tensor.
        dim: What was asked for; negative counts from the end.

    Raises:
        InvalidInputError: It is no whole number.
        ShapeError: The tensor has no such dim.
    """
    asked = whole_number(dim, "dim")
    if not -tensor.dim() <= asked < tensor.dim():
        raise ShapeError(f"{name!r} has no dim {asked}.", shape=tuple(tensor.shape), dim=asked)
    return asked % tensor.dim()


@contextmanager
def in_context(what: str, shape: torch.Size | None) -> Iterator[None]:
    """Say once, at the entry, what was being done when an inner check failed.

    Args:
        what: What could not be done, to go before the error's own text.
        shape: Shape of the tensor it was to be done to, None if the error says enough.
    """
    try:
        yield
    except SecateurError as error:
        facts = {"shape": tuple(shape), **error.facts} if shape is not None else error.facts
        raise type(error)(f"{what}: {error.problem}", fix=error.fix, **facts) from None
