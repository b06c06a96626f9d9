"""Questions about a tensor's values that work for every dtype and layout that a training setup holds."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["is_zero", "num_not_finite"]


def is_zero(tensor: Tensor | None) -> bool:
    """Whether there are values, and all of them are exactly zero.

    Example:
        >>> is_zero(torch.zeros(2)), is_zero(torch.zeros(0)), is_zero(None)
        (True, False, False)
    """
    if tensor is None or tensor.is_meta:
        return False
    values = _readable(tensor)
    return values.numel() > 0 and not bool(values.any())


def num_not_finite(tensor: Tensor) -> int:
    """How many values are inf or nan.

    Example:
        >>> num_not_finite(torch.tensor([1.0, torch.inf, torch.nan])), num_not_finite(torch.arange(3))
        (2, 0)
    """
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    finite = _readable(tensor).isfinite()
    return 0 if bool(finite.all()) else int(finite.logical_not().count_nonzero())


def _readable(tensor: Tensor) -> Tensor:
    """The explicit values, in a dtype that all ops know (float8 is known to few)."""
    if tensor.layout != torch.strided:
        tensor = tensor.detach().to_sparse_coo().coalesce().values()
    return tensor.detach().float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor.detach()
