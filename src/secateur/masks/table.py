"""How the masks of a model are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from secateur.masks.bits import Bits

__all__ = ["table"]

_NUM_SHOWN = 6
"""Names of unmasked parameters that are listed."""


def table(
    masks: Mapping[str, Bits],
    others: Sequence[str],
    skipped: Mapping[str, tuple[torch.Size, str]] | None = None,
    remainders: Mapping[str, str] | None = None,
) -> str:
    """Lay out shape, zeros and sparsity of each masked tensor, then what is not masked.

    Args:
        masks: Masks by dotted name.
        others: Names of parameters that have none.
        skipped: Shape of each parameter that was to be masked and is not, and why.
        remainders: Why some units of a mask are smaller than others.

    Returns:
        Several lines.

    Example:
        >>> mask = Bits.of(torch.tensor([[True], [False]]), torch.zeros(2, 1))
        >>> print(table({"fc.weight": mask}, ["fc.bias"], {"out.weight": (torch.Size([3, 2]), "size 3 is odd")}))
        Masks: 1 of 8 weights are zero (12.50 %) in 1 tensor, 1 skipped
          fc.weight   (2, 1)  1 zeros  50.00 %
          out.weight  (3, 2)  0 zeros   0.00 %  skipped: size 3 is odd
          not masked: fc.bias
    """
    left_out, smaller = skipped or {}, remainders or {}
    rows = [(name, bits.shape, bits.num_zeros, smaller.get(name, "")) for name, bits in masks.items()]
    rows = [(name, shape, count, why and f"some units are smaller: {why}") for name, shape, count, why in rows]
    rows += [(name, shape, 0, f"skipped: {why}") for name, (shape, why) in left_out.items()]
    zeros, total = sum(count for _, _, count, _ in rows), sum(shape.numel() for _, shape, _, _ in rows)
    tensors = f"{len(masks)} tensor{'' if len(masks) == 1 else 's'}"
    tensors += f", {len(left_out)} skipped" if left_out else ""
    lines = [f"Masks: {zeros:,} of {total:,} weights are zero ({_percent(zeros, total)}) in {tensors}"]
    cells = [
        (name, str(tuple(shape)), f"{count:,} zeros", _percent(count, shape.numel()), why)
        for name, shape, count, why in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, shape, count, share, why in cells:
        line = f"  {name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}  {share:>{widths[3]}}  {why}"
        lines.append(line.rstrip())
    if others:
        more = f" and {len(others) - _NUM_SHOWN} more" if len(others) > _NUM_SHOWN else ""
        lines.append(f"  not masked: {', '.join(others[:_NUM_SHOWN])}{more}")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    """A share, to two digits."""
    return f"{100 * part / whole if whole else 0:.2f} %"
