"""The score of a unit of several entries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["signed_norm"]


def signed_norm(score: Tensor, dims: Sequence[int]) -> Tensor:
    r"""L2 norm over some dims, carried on to scores that may be negative.

    With :math:`t = \sum s |s|` it is :math:`\operatorname{sign}(t) \sqrt{|t|}`: the norm where no score is negative,
    and raising a score always raises it.

    Args:
        score: Real floating-point scores.
        dims: Dims to sum over; none means that every entry is rated by itself.

    Returns:
        The norms, at least float32, detached; the dims are gone. An infinite entry makes its norm infinite.
    """
    entries = score.detach()
    dtype = torch.promote_types(score.dtype, torch.float32)
    if not dims:
        return entries.to(dtype)
    if entries.numel() and bool(entries.amin() >= 0):
        return _norm(entries, dims).to(dtype)
    norm = _norm(entries.clamp(min=0), dims)
    if bool((entries < 0).any()):
        total = norm**2 - _norm(entries.clamp(max=0), dims) ** 2
        norm = total.sign() * total.abs().sqrt()
    return norm.to(dtype)


def _norm(entries: Tensor, dims: Sequence[int]) -> Tensor:
    """L2 norm in float64, so that the squares of tiny scores (weight times gradient) do not all become 0."""
    norm: Tensor = torch.linalg.vector_norm(entries, dim=list(dims), dtype=torch.float64)
    return norm
