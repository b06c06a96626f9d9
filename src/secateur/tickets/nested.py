"""Nested values of numbers, words and tensors (what optimizers and schedulers keep): owned copies, and plain files."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from secateur._errors import UnsupportedError

__all__ = ["from_json", "owned", "to_json"]

_PLAIN = (bool, int, float, str, type(None))


def owned(value: Any) -> Any:
    """A copy of a nested value that shares no memory with it; tensors are copied without their graph.

    Example:
        >>> import torch
        >>> momentum = torch.zeros(2)
        >>> kept = owned({"momentum_buffer": momentum, "step": 3})
        >>> _ = momentum.add_(1.0)
        >>> kept
        {'momentum_buffer': tensor([0., 0.]), 'step': 3}
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(owned(each) for each in value)
    if type(value) is dict:
        return {key: owned(each) for key, each in value.items()}
    return copy.deepcopy(value)


def to_json(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Describe a nested value in JSON; its tensors go to `tensors`, by names that start with `name`.

    Args:
        value: Numbers, words, None, tensors, and lists, tuples, dicts and counters of these.
        name: Where the value is, for the names of its tensors and for errors.
        tensors: Gets the tensors.

    Returns:
        Numbers and words as they are; everything else as a dict with one key, its kind.

    Raises:
        UnsupportedError: A value of another kind.

    Example:
        >>> to_json({"betas": (0.9, 0.999)}, "adam", {})
        {'dict': [['betas', {'tuple': [0.9, 0.999]}]]}
    """
    if isinstance(value, Tensor):
        free = name if name not in tensors else f"{name}#{len(tensors)}"  # keys 1 and "1" of one dict
        tensors[free] = value.contiguous()
        return {"tensor": free}
    if type(value) in (list, tuple):
        return {type(value).__name__: [to_json(each, f"{name}.{i}", tensors) for i, each in enumerate(value)]}
    if type(value) in (dict, Counter):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {kind: [[_key(key, name), to_json(each, f"{name}.{key}", tensors)] for key, each in value.items()]}
    if isinstance(value, _PLAIN):
        return value
    raise _unknown(value, name)


def from_json(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `to_json`."""
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tensor":
        return tensors[content]
    if kind in ("list", "tuple"):
        values = [from_json(each, tensors) for each in content]
        return tuple(values) if kind == "tuple" else values
    pairs = {key: from_json(each, tensors) for key, each in content}
    return Counter(pairs) if kind == "counter" else pairs


def _key(key: object, name: str) -> object:
    """A key of a dict, if a file can hold it."""
    if not isinstance(key, _PLAIN):
        raise _unknown(key, name)
    return key


def _unknown(value: object, name: str) -> UnsupportedError:
    """The error for a value that has no place in a file."""
    return UnsupportedError(
        f"cannot save {name!r}: files hold numbers, words and tensors only.",
        kind=type(value).__name__,
        fix="keep the snapshot in memory, or take it without this optimizer or scheduler",
    )
