"""Unstructured weights with 16 outputs in the lanes of a vector, for one row or a few."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur._native import rows
from secateur.runtime.formats._format import Bound, LinearFormat, Parts

__all__ = ["LANES"]

_CHUNK = rows.GROUP * rows.NEIGHBOURS


def _misfit(weight: Tensor) -> str:
    """Every weight can be kept so."""
    return ""


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """The entries that are not zero, as `rows.Packed`."""
    weight = weight.to(dtype).float().contiguous()  # what rounds to zero is not kept
    packed = rows.pack(weight, _outputs_of((weight != 0).sum(1)))
    return packed._replace(values=packed.values.to(dtype))


def _outputs_of(kept: Tensor) -> Tensor:
    """Outputs by groups of lanes: those with like counts together, within every `_CHUNK` outputs."""
    outputs = len(kept)
    groups, chunks = -(-outputs // rows.GROUP), -(-outputs // _CHUNK)
    padded = kept.new_full((chunks * _CHUNK,), -1)
    padded[:outputs] = kept
    order = padded.view(chunks, _CHUNK).argsort(dim=1, descending=True, stable=True)
    order += torch.arange(chunks)[:, None] * _CHUNK
    return order.masked_fill_(order >= outputs, -1).int().view(-1, rows.GROUP)[:groups].clone()


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the values back into a dense weight."""
    values, indices, bases, starts, outputs_of = parts
    of_step = outputs_of.repeat_interleave(starts.diff(), dim=0)[:, None].expand(-1, 2, -1)
    columns = bases[:, None, None] + indices
    taken = values != 0
    weight = torch.zeros(shape, dtype=torch.float32)
    weight[of_step[taken], columns[taken]] = values[taken].float()
    return weight


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product, with the bias in the order of the lanes."""
    outputs_of = rows.Packed(*parts).outputs_of
    of_lanes = torch.zeros(outputs_of.shape, dtype=torch.float32)
    if bias is not None:
        of_lanes = torch.where(outputs_of < 0, of_lanes, bias.detach()[outputs_of.clamp(min=0)])
    return rows.product(rows.Packed(*parts), shape, of_lanes, relu)


LANES = LinearFormat("lanes", "kernels", _misfit, _pack, _unpack, _bind, rows=(1, 8))
"""Pays from about 50 % zeros on, for a few rows. Weights that are zero pass no inf and no nan of the input on."""
