"""How the masks of a model are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secateur.masks.bits import Bits

__all__ = ["table"]

_NUM_SHOWN = 6
"""Names of unmasked parameters that are listed."""


def table(masks: Mapping[str, Bits], others: Sequence[str]) -> str:
    """Lay out shape, zeros and sparsity of each masked tensor, then what is not masked.

    Args:
        masks: Masks by dotted name.
        others: Names of parameters that have none.

    Returns:
        Several lines.

    Example:
        >>> import torch
        >>> print(table({"fc.weight": Bits.of(torch.tensor([True, False]), torch.zeros(2))}, ["fc.bias"]))
        Masks: 1 of 2 weights are zero (50.00 %) in 1 tensor
          fc.weight  (2,)  1 zeros  50.00 %
          not masked: fc.bias
    """
    rows = [(name, bits.shape, bits.num_zeros) for name, bits in masks.items()]
    zeros, total = sum(count for _, _, count in rows), sum(shape.numel() for _, shape, _ in rows)
    tensors = f"{len(rows)} tensor{'' if len(rows) == 1 else 's'}"
    lines = [f"Masks: {zeros:,} of {total:,} weights are zero ({_percent(zeros, total)}) in {tensors}"]
    cells = [
        (name, str(tuple(shape)), f"{count:,} zeros", _percent(count, shape.numel())) for name, shape, count in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, shape, count, share in cells:
        lines.append(f"  {name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}  {share:>{widths[3]}}")
    if others:
        more = f" and {len(others) - _NUM_SHOWN} more" if len(others) > _NUM_SHOWN else ""
        lines.append(f"  not masked: {', '.join(others[:_NUM_SHOWN])}{more}")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    """A share, to two digits."""
    return f"{100 * part / whole if whole else 0:.2f} %"
