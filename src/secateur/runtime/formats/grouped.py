"""Groups of outputs that read the same inputs: a gather of columns and a small dense product, in torch alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from secateur.runtime.formats._format import Bound, LinearFormat, Parts

__all__ = ["GROUPED", "group_size"]

_SIZES = (4096, 2048, 1024, 512, 256, 128, 64, 32)
_WASTE = 1.25  # values that are kept, for each that is not zero
_FEW_ROWS = 4  # up to which one batched product of all groups beats one product a group


def group_size(weight: Tensor) -> int:
    """The largest size of groups of consecutive outputs that share their inputs, nearly; 0 if there is none."""
    nonzero = weight != 0
    count = int(torch.count_nonzero(nonzero))
    for size in _SIZES:
        if size <= weight.shape[0]:
            kept = sum(len(rows) * int(torch.count_nonzero(rows.any(0))) for rows in nonzero.split(size))
            if kept <= _WASTE * count:
                return size
    return 0


def _misfit(weight: Tensor) -> str:
    """Why a weight is not kept so."""
    if weight.shape[0] < _SIZES[-1]:
        return f"fewer than {_SIZES[-1]} outputs"
    return "" if group_size(weight) else "no groups of outputs that read the same inputs"


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    """Sizes of the groups and numbers of their columns ``(2, groups)``, all columns, all values one after another."""
    size = group_size(weight)
    columns = [rows.any(0).nonzero().squeeze(1) for rows in (weight != 0).split(size)]
    values = [rows[:, own] for rows, own in zip(weight.split(size), columns, strict=True)]
    counts = torch.tensor([[len(value) for value in values], [len(own) for own in columns]])
    return counts, torch.cat(columns), torch.cat([value.reshape(-1) for value in values]).to(dtype)


def _groups(parts: Parts) -> tuple[list[Tensor], list[Tensor]]:
    """Columns and float32 values ``(outputs, columns)`` of each group."""
    counts, columns, values = parts
    sizes, widths = counts.tolist()
    blocks = values.float().split([size * width for size, width in zip(sizes, widths, strict=True)])
    shaped = [block.view(size, width) for block, size, width in zip(blocks, sizes, widths, strict=True)]
    return list(columns.split(widths)), shaped


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    """Put the values back into a dense weight."""
    weight = torch.zeros(shape, dtype=torch.float32)
    for rows, columns, values in zip(weight.split(parts[0][0].tolist()), *_groups(parts), strict=True):
        rows[:, columns] = values
    return weight


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    """The product: one batched product for few rows and groups of nearly one shape, one product a group otherwise."""
    columns, values = _groups(parts)
    by_group = _product_of_each(columns, values, bias, relu)
    widths = [len(own) for own in columns]
    most = max(widths, default=0)
    if len({len(value) for value in values}) > 1 or not all(widths) or most * len(widths) > _WASTE * sum(widths):
        return by_group
    taken = torch.stack([torch.cat([own, own[:1].expand(most - len(own))]) for own in columns])  # again, times zero
    stacked = torch.stack([functional.pad(value, (0, most - value.shape[1])) for value in values])
    at_once = _product_of_all(taken, stacked, bias, relu)
    return lambda x: at_once(x) if len(x) <= _FEW_ROWS else by_group(x)


def _product_of_each(columns: list[Tensor], values: list[Tensor], bias: Tensor | None, relu: bool) -> Bound:
    """One product a group."""
    biases = [None] * len(values) if bias is None else list(bias.split([len(value) for value in values]))

    def product(x: Tensor) -> Tensor:
        groups = zip(columns, values, biases, strict=True)
        y = torch.cat([functional.linear(x.index_select(1, own), value, b) for own, value, b in groups], 1)
        return y.relu_() if relu else y

    return product


def _product_of_all(columns: Tensor, values: Tensor, bias: Tensor | None, relu: bool) -> Bound:
    """One batched product of all groups, brought to one shape: as few ops as can be, each costs as much as it does."""
    groups, size, width = values.shape
    taken, stacked = columns.flatten(), values.mT.contiguous()
    start = (torch.zeros(groups * size, dtype=torch.float32) if bias is None else bias).view(groups, 1, size)

    def product(x: Tensor) -> Tensor:
        if len(x) == 1:
            y = torch.baddbmm(start, x.index_select(1, taken).view(groups, 1, width), stacked).view(1, groups * size)
            return y.relu_() if relu else y
        inputs = x.index_select(1, taken).view(len(x), groups, width).transpose(0, 1)
        y = torch.baddbmm(start, inputs, stacked).transpose(0, 1).reshape(len(x), groups * size)
        return y.relu_() if relu else y

    return product


GROUPED = LinearFormat("grouped", "torch", _misfit, _pack, _unpack, _bind)
"""Blocks of many outputs by one input, as the pattern ``Block((256, 1))`` makes them."""
