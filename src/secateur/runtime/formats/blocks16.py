"""Weights whose columns are kept or masked for 16 consecutive outputs together, for any number of rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from secateur._native import blocks
from secateur.runtime.formats._format import Bound, LinearFormat, Parts

__all__ = ["BLOCKS_16"]

_LEAST_FILLED = 0.5
_NARROW = 1 << 16


def _misfit(weight: Tensor) -> str:
    """Blocks that are mostly empty cost more than they save."""
    kept = int((weight != 0).sum())
    stored = int((_grouped(weight) != 0).any(1).sum()) * blocks.GROUP
    if kept >= _LEAST_FILLED * stored:
        return ""
    return f"its zeros are not in blocks of {blocks.GROUP} outputs: {kept} of {stored} stored values were not zero"


def _grouped(weight: Tensor) -> Tensor:
    """The weight as ``(groups, 16, inputs)``, with zeros in the outputs that fill the last group."""
    grouped: Tensor = pad(weight, (0, 0, 0, -len(weight) % blocks.GROUP)).unflatten(0, (-1, blocks.GROUP))
    return grouped


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """The blocks that are not empty, as `blocks.Packed`."""
    grouped = _grouped(weight.detach())
    kept = (grouped != 0).any(1)
    groups, columns = kept.nonzero(as_tuple=True)
    starts = pad(kept.sum(1).cumsum(0), (1, 0))
    narrow = torch.int16 if weight.shape[1] <= _NARROW else torch.int32
    return blocks.Packed(grouped[groups, :, columns].to(dtype), columns.to(narrow), starts)


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the blocks back into a dense weight."""
    values, columns, starts = parts
    groups = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
    grouped = torch.zeros(len(starts) - 1, blocks.GROUP, shape[1], dtype=torch.float32)
    grouped[groups, :, _wide(columns)] = values.float()
    return grouped.flatten(0, 1)[: shape[0]].clone()


def _wide(columns: Tensor) -> Tensor:
    """Columns as numbers: those in int16 are unsigned."""
    return columns.long() % _NARROW if columns.dtype == torch.int16 else columns.long()


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product, with a bias for every output of the groups."""
    given = torch.zeros(shape[0], dtype=torch.float32) if bias is None else bias.detach()
    padded = pad(given, (0, -shape[0] % blocks.GROUP)).view(-1, blocks.GROUP)
    return blocks.product(blocks.Packed(*parts), shape, padded, relu)


BLOCKS_16 = LinearFormat("blocks 16", "kernels", _misfit, _pack, _unpack, _bind)
"""Pays from about 50 % zeros on. A zero in a block that is not empty passes inf and nan of the input on, as nan."""
